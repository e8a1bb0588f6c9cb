"""A writer that is killed at any moment: whatever it was told is recorded, is recorded."""

import random
import select
import subprocess
import sys
from pathlib import Path

import pytest

from bayplan.state import Store

WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from conftest import Recording, make_entry

store, start = Recording.open(Path(sys.argv[1])), int(sys.argv[3])
for number in range(start, start + 100_000):
    gone = f"c{number - 5}"
    store.record([make_entry(f"c{number}"), make_entry(f"twin-of-c{number}")], gone=[gone])
    print(number, flush=True)
"""


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(more, marks=pytest.mark.matrix) for more in (2, 3))])
def test_every_acknowledged_record_survives_sigkill(tmp_path: Path, seed: int) -> None:
    dice, start, acknowledged = random.Random(seed), 1000, []
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(Path(__file__).parent), str(start)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert writer.stdout is not None
        assert writer.stderr is not None
        with writer.stdout, writer.stderr:
            for _ in range(dice.randrange(1, 40)):
                line = writer.stdout.readline()
                assert line, writer.stderr.read().decode()
                acknowledged.append(int(line))
            # Somewhere inside the next commits: they take some 500 us each.
            select.select([], [], [], dice.uniform(0, 0.003))
            writer.kill()
            acknowledged += [int(one) for one in writer.stdout.read().split(b"\n")[:-1]]
        writer.wait()
        last = acknowledged[-1]
        store = Store.open(tmp_path)
        present = {one.container_id for one in store.entries()}
        decided = {item.decision.request.container_id for item in store.history(limit=100_000)}
        store.close()
        assert not list(tmp_path.glob("*corrupt*"))
        assert {f"c{number}" for number in acknowledged} <= decided
        # The step after the last acknowledged one may have been committed too, whole.
        started = {last, last + 1} if f"c{last + 1}" in decided else {last}
        assert {f"c{number}" for number in range(max(started) - 4, last + 1) if number >= start} <= present
        for number in acknowledged:
            assert f"twin-of-c{number}" in present
            assert (f"c{number}" in present) == (number > max(started) - 5)
        assert (f"twin-of-c{last + 1}" in present) == (f"c{last + 1}" in present)
        start = max(started) + 1
