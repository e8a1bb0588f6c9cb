"""Whatever lies where a path on the command line leads: an answer or one clear error, and no wait without an
end."""

import argparse
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bayplan.cli.bayplan import build_parser, main
from bayplan.cli.client import ask
from bayplan.errors import EXIT_CONFIG, EXIT_FAILURE, UnavailableError


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


ODD: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a directory": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": make_socket,
    "a file of 1 GB": lambda path: (path.touch(), os.truncate(path, 1 << 30)),
}
GIVEN = {
    "explain": ["web"],
    "history": ["web"],
    "what-if": ["--memory", "1Gi"],
    "map": ["--svg", "{trace}"],
    "replay": ["{trace}"],
    "export-state": ["{kubelet}"],
    "import-state": ["--kubelet-directory", "{kubelet}"],
    "simulate": ["--topology", "{machine}", "--trace", "{trace}"],
}
"""What a verb cannot do without."""
INSTEAD = {
    "--cluster": ["--trace", "{trace}"],
    "--results": ["--cluster", "{cluster}", "--trace", "{pods}"],
}
"""What an option goes with, where that is something else."""
POSITIONAL = ("manifests", "file", "directory")
"""Arguments that are paths and have no name on the command line."""


def paths_of_verbs() -> Iterator[tuple[str, str]]:
    """Each verb, with each of its options that is a path, or that takes files."""
    verbs = next(one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction))
    for verb, parser in verbs.choices.items():
        for action in parser._actions:
            if action.type is Path and action.option_strings:
                yield verb, action.option_strings[0]
            elif action.metavar in ("FILE", "PATH", "DIR"):
                yield verb, action.dest


def test_the_options_are_found() -> None:
    assert set(paths_of_verbs()) >= {
        ("status", "--admin-socket"),
        ("simulate", "--config"),
        ("what-if", "manifests"),
        ("replay", "file"),
    }


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize(("verb", "option"), list(paths_of_verbs()))
def test_nothing_hangs_and_one_error_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, option: str, kind: str
) -> None:
    odd, machine, trace = tmp_path / "odd", tmp_path / "machine.toml", tmp_path / "trace.jsonl"
    ODD[kind](odd)
    machine.write_text('[[nodes]]\ncpus = 4\nmemory = "8Gi"\n')
    trace.write_text('{"arrive": "a", "memory": "1Gi"}\n')
    cluster, pods = tmp_path / "cluster.toml", tmp_path / "pods.csv"
    cluster.write_text('[[nodes]]\ntopology = "machine.toml"\n')
    pods.write_text("cpus,memory\n1,1\n")
    kubelet = tmp_path / "kubelet"
    kubelet.mkdir()
    for name in ("cpu_manager_state", "memory_manager_state"):
        (kubelet / name).write_text("{}")
    given = [
        word.format(machine=machine, trace=trace, kubelet=kubelet, cluster=cluster, pods=pods)
        for word in INSTEAD.get(option, GIVEN.get(verb, []))
    ]
    asked = [verb, "--admin-socket", str(tmp_path / "none.sock"), *given]
    asked = [verb, str(odd)] if option in POSITIONAL else [*asked, option, str(odd)]
    status = main(asked)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    if status not in (0, EXIT_FAILURE) or said.err:
        assert said.err.startswith("bayplan: ")
        # Of kubelet's directory both files are named.
        both = (option, kind) == ("--kubelet-directory", "a directory")
        assert said.err.count("\n") == (3 if both else 1)
    is_asked = option == "--admin-socket" and verb not in ("simulate", "record-topology", "replay")
    if is_asked and kind != "a socket":
        found = "a regular file" if kind == "a file of 1 GB" else kind
        assert (status, said.out) == (EXIT_CONFIG, "")
        assert said.err == f"bayplan: {odd}: the file: found {found}, expected the daemon's socket\n"
    elif option in ("--root", "--state-directory") and kind != "a directory":
        assert status
        assert str(odd) in said.err
    elif option == "--svg":
        assert status  # a file that is there is written anew, but there is nobody to ask
        assert kind == "a file of 1 GB" or str(odd) in said.err
    elif option != "--admin-socket" and kind not in ("a directory", "a socket"):
        assert status == EXIT_CONFIG
        assert str(odd) in said.err


def test_one_who_says_a_byte_now_and_then_is_not_waited_for(tmp_path: Path) -> None:
    stopped = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "slow.sock"))
        listener.listen()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                while not stopped.wait(0.01):
                    try:
                        connection.send(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(UnavailableError, match="it took too long"):
                ask(tmp_path / "slow.sock", "status", timeout_s=0.2)
        finally:
            stopped.set()
            thread.join()
