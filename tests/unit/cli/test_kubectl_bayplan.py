"""`kubectl bayplan` with a kubectl that answers from files: several nodes, and some that do not answer."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayplan.cli.kubectl_bayplan import main
from bayplan.views.status import nodes_view, status_view
from support.console_blocks import commands
from support.snapshots import make_snapshot

Capture = pytest.CaptureFixture[str]

KUBECTL = f"""\
#!{sys.executable}
import json, pathlib, sys, time
here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
words = [word for word in sys.argv[1:] if not word.startswith("--context")]
said = json.loads((here / (words[2] if words[0] == "exec" else words[0])).read_text())
time.sleep(said.get("hangs", 0))
sys.stdout.write(said.get("out", ""))
sys.stderr.write(said.get("err", ""))
sys.exit(said.get("status", 0))
"""
UNKNOWN = {
    "status": 1,
    "err": "bayplan: the daemon at /run/bayplan/admin.sock answered: nothing is known of web\n"
    "command terminated with exit code 1\n",
}


class Cluster:
    """The answers of kubectl, as files beside it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pods: list[dict[str, Any]] = []
        program = directory / "kubectl"
        program.write_text(KUBECTL)
        program.chmod(0o755)
        self.say("get", out='{"items": []}')

    def say(self, name: str, **said: Any) -> None:
        (self._directory / name).write_text(json.dumps(said))

    def pod(self, node: str, status: dict[str, Any] | None = None, **metadata: str) -> str:
        """Its name; without a *status* it runs."""
        name = f"bayplan-{len(self._pods)}"
        running = {
            "phase": "Running",
            "containerStatuses": [{"name": "daemon", "state": {"running": {}}}],
        }
        self._pods.append(
            {
                "metadata": {"name": name, **metadata},
                "spec": {"nodeName": node},
                "status": running if status is None else status,
            }
        )
        self.say("get", out=json.dumps({"items": self._pods}))
        return name

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self._directory / "calls").read_text().splitlines()]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("PATH", str(tmp_path))
    return Cluster(tmp_path)


def answer(view: Any) -> str:
    return json.dumps(view(make_snapshot()))


def status() -> str:
    return json.dumps({**status_view(make_snapshot()), "refusals": [], "shadow": False})


def test_all_nodes_are_asked_and_shown_in_their_order(cluster: Cluster, capsys: Capture) -> None:
    for node in ("b", "a"):
        cluster.say(cluster.pod(node), out=status())
    assert main(["status", "--namespace", "prod", "--context", "here", "--installed-in", "system"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("Node a\n") < shown.index("Node b\n")
    listing, *asking = cluster.calls
    assert listing[:4] == ["--context=here", "get", "pods", "--namespace=system"]
    where = ["--context=here", "exec", "--namespace=system"]
    what = ["--container=daemon", "--", "bayplan", "status", "--output=json", "--namespace=prod"]
    assert sorted(asking) == [[*where, "bayplan-0", *what], [*where, "bayplan-1", *what]]


SILENT: dict[str, tuple[dict[str, Any], str]] = {
    "kubectl fails": (
        {"status": 1, "err": "Error from server: error dialing backend: no route to host\n"},
        "Error from server: error dialing backend: no route to host",
    ),
    "no daemon": (
        {
            "status": 3,
            "err": "bayplan: no daemon answers at /run\ncommand terminated with exit code 3\n",
        },
        "no daemon answers at /run",
    ),
    "garbage": ({"out": "{"}, "something that is not JSON"),
    "a list": ({"out": "[]"}, "something that is not an object"),
    "no word": ({"status": 137}, "it said nothing"),
    "hangs": ({"hangs": 3600}, "no answer within 5 s"),
}


@pytest.mark.parametrize(("said", "expected"), SILENT.values(), ids=SILENT)
def test_a_node_that_does_not_answer_is_named_and_takes_nothing_from_others(
    cluster: Cluster, capsys: Capture, said: dict[str, Any], expected: str
) -> None:
    cluster.say(cluster.pod("a"), out=answer(nodes_view))
    cluster.say(cluster.pod("b"), **said)
    assert main(["nodes", "--output=json", "--timeout=5"]) == 3
    first, second = json.loads(capsys.readouterr().out)["nodes"]
    assert first == {"name": "a", "answer": nodes_view(make_snapshot())}
    assert (second["name"], expected in second["problem"]) == ("b", True)
    assert main(["nodes", "--timeout=5"]) == 3
    assert capsys.readouterr().out.splitlines()[-1].startswith("Node b: no answer: ")


def test_a_pod_that_does_not_run_says_why(cluster: Cluster, capsys: Capture) -> None:
    """The step before the daemon has said what is missing; kubelet shows it once it waits to try again."""
    ended = {"exitCode": 1, "message": "error: containerd: no NRI socket\n  restart it\n"}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}}
    check = {"name": "prerequisites", "state": waiting, "lastState": {"terminated": ended}}
    daemon = {"name": "daemon", "state": {"waiting": {"reason": "PodInitializing"}}}
    cluster.pod("a", {"phase": "Pending", "initContainerStatuses": [check], "containerStatuses": [daemon]})
    cluster.pod("b", {"phase": "Failed", "reason": "Evicted"})
    cluster.pod("c", {"phase": "Pending", "containerStatuses": [{"name": "daemon", "state": waiting}]})
    assert main(["nodes", "-o", "json"]) == 3
    assert [one["problem"] for one in json.loads(capsys.readouterr().out)["nodes"]] == [
        "the pod bayplan-0 is Pending: prerequisites: error: containerd: no NRI socket restart it",
        "the pod bayplan-1 is Failed: Evicted",
        "the pod bayplan-2 is Pending: daemon: back-off 20s",
    ]


def test_while_a_pod_is_replaced_the_one_that_runs_is_asked(cluster: Cluster, capsys: Capture) -> None:
    cluster.pod("a", deletionTimestamp="2026-01-01T00:00:00Z")
    cluster.say(cluster.pod("a"), out=answer(nodes_view))
    assert main(["nodes"]) == 0
    assert [words[2] for words in cluster.calls if words[0] == "exec"] == ["bayplan-1"]


def test_a_daemon_of_another_version_is_shown_as_it_answers_or_named(
    cluster: Cluster, tmp_path: Path, capsys: Capture
) -> None:
    cluster.say(cluster.pod("a"), out='{"apiVersion": "bayplan/v0", "zones": []}')
    assert main(["nodes"]) == 3
    assert "cannot show what it answered" in capsys.readouterr().out
    assert main(["map", "--svg", str(tmp_path)]) == 3
    assert main(["nodes", "-o", "json"]) == 0


def test_only_the_nodes_that_were_named_are_asked(cluster: Cluster, capsys: Capture) -> None:
    for node in ("a", "b"):
        cluster.say(cluster.pod(node), out=answer(nodes_view))
    assert main(["nodes", "--node", "b"]) == 0
    assert "Node a" not in capsys.readouterr().out
    assert main(["nodes", "--node", "c"]) == 3
    assert "no pod of bayplan is on c: bayplan runs on a, b" in capsys.readouterr().err


EXPLANATION = {"apiVersion": "bayplan/v1", "kind": "Explanation", "containers": []}


def test_who_does_not_know_a_pod_is_not_in_its_explanation(cluster: Cluster, capsys: Capture) -> None:
    cluster.say(cluster.pod("a"), **UNKNOWN)
    cluster.say(cluster.pod("b"), out=json.dumps(EXPLANATION))
    assert main(["explain", "web", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == [{"name": "b", "answer": EXPLANATION}]
    assert cluster.calls[-1][-4:] == ["explain", "--output=json", "--", "web"]


def test_a_pod_that_nobody_knows(cluster: Cluster, capsys: Capture) -> None:
    for node in ("a", "b"):
        cluster.say(cluster.pod(node), **UNKNOWN)
    assert main(["explain", "web"]) == 1
    assert capsys.readouterr().err.count("nothing is known of web") == 1
    # A node that does not answer may be the one that knows it.
    cluster.say(cluster.pod("c"), status=1, err="Error from server: timeout\n")
    assert main(["explain", "web"]) == 3
    assert capsys.readouterr().out == "Node c: no answer: Error from server: timeout\n"


def test_a_map_needs_no_pictures_and_names_who_is_silent(
    cluster: Cluster, tmp_path: Path, capsys: Capture
) -> None:
    for node in ("a", "b"):
        cluster.say(cluster.pod(node), out=answer(nodes_view))
    cluster.say(cluster.pod("c"), status=1, err="Error from server: timeout\n")
    assert main(["map"]) == 3
    out = capsys.readouterr().out
    digits = len(nodes_view(make_snapshot())["nodes"])
    (strip,) = [line.split() for line in out.splitlines() if line.startswith("a ")]
    assert [len(cell) for cell in strip[1:]] == [digits, digits, 1]
    assert out.splitlines()[-1] == "Node c: no answer: Error from server: timeout"
    assert not [*tmp_path.glob("**/*.svg")]
    assert main(["map", "-o", "json"]) == 3
    (first, *_) = json.loads(capsys.readouterr().out)["nodes"]
    assert (first["answer"]["nodes"], len(first["answer"]["numaNodes"])) == (digits, digits)
    assert "file" not in first["answer"]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_document_is_the_same_in_whatever_order_nodes_answer(
    cluster: Cluster, capsys: Capture, form: str
) -> None:
    """Some are later than more others than are asked at once; what is written is one document."""
    loads = {"json": json.loads, "yaml": yaml.safe_load}[form]
    names = [f"n{number:03}" for number in range(70)]
    for number, node in enumerate(names):
        cluster.say(cluster.pod(node), out=json.dumps({"seen": f"{node}\nnext"}), hangs=0.3 * (number == 0))
    assert main(["nodes", "-o", form]) == 0
    document = loads(capsys.readouterr().out)
    assert list(document) == ["apiVersion", "kind", "nodes"]
    assert [(one["name"], one["answer"]["seen"][:4]) for one in document["nodes"]] == [(n, n) for n in names]


def test_a_picture_of_each_node(cluster: Cluster, tmp_path: Path, capsys: Capture) -> None:
    for node in ("a", "b"):
        cluster.say(cluster.pod(node), out=answer(nodes_view))
    assert main(["map", "--svg", str(tmp_path / "pictures"), "-o", "json"]) == 0
    views = json.loads(capsys.readouterr().out)["nodes"]
    for node, view in zip(("a", "b"), views, strict=True):
        assert (tmp_path / f"pictures/{node}.svg").read_text().startswith("<svg")
        assert view["answer"]["file"] == f"{tmp_path}/pictures/{node}.svg"
    assert main(["map", "--svg", str(tmp_path / "pictures")]) == 0
    assert f"{tmp_path}/pictures/cluster.svg" in capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"out": '{"items": []}'}, "no pod of bayplan is in the namespace bayplan"),
        ({"status": 1, "err": "error: You must be logged in to the server\n"}, "You must be logged in"),
        ({"out": "{}"}, "cannot be listed"),
    ],
)
def test_without_pods_there_is_one_sentence(
    cluster: Cluster, capsys: Capture, said: dict[str, Any], expected: str
) -> None:
    cluster.say("get", **said)
    assert main(["status"]) == 3
    captured = capsys.readouterr()
    assert (captured.out, expected in captured.err) == ("", True)


def test_without_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["status"]) == 3
    assert "kubectl: cannot be started" in capsys.readouterr().err


def test_what_others_said_is_printable(cluster: Cluster, capsys: Capture) -> None:
    cluster.say(cluster.pod("a\x1b[2J"), status=1, err="\x1b[2J\u202eFORGED\n")
    for form in ("table", "json", "yaml"):
        assert main(["nodes", "-o", form]) == 3
        assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_the_documented_commands(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = commands("run by tests/unit/cli/test_kubectl_bayplan.py")
    asked = {shlex.split(one, comments=True)[2]: shlex.split(one, comments=True)[3:] for one in shown}
    assert asked.keys() == {"status", "explain", "nodes", "claims", "map"}
    answers = {"status": status(), "explain": json.dumps(EXPLANATION), "claims": '{"claims": []}'}
    names = [cluster.pod(node) for node in ("a", "b")]
    monkeypatch.chdir(tmp_path)
    for verb, words in asked.items():
        for name in names:
            cluster.say(name, out=answers.get(verb, answer(nodes_view)))
        assert main([verb, *words]) == 0
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"a.svg", "b.svg", "cluster.svg"}
