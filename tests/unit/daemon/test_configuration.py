"""Settings where the node's kubelet says its version at once, late, or never."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bayplan.daemon.configuration import BY_NODE, CLUSTER_VERSION, Configuration, KubeletQuestion
from bayplan.errors import ConfigError
from bayplan.host.kubelet_program import KubeletVersion, kubelet_of_node
from support.coroutines import PATIENCE_S

KUBELETS = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"
# 1.37 has MemoryQoS on, and takes this; before, it is an error without the feature gate.
ONLY_NEWER = "memoryReservationPolicy: TieredReservation\n"
PROGRAM = "kubelet --version"
OLDER, NEWER = KubeletVersion("v1.36.3", PROGRAM), KubeletVersion("v1.37.2", PROGRAM)
SHORT_S = 0.05


class Kubelet:
    """A kubelet whose program answers when it is let; and how often it was asked."""

    def __init__(self, says: KubeletVersion | None) -> None:
        self.says = says
        self.may_answer = threading.Event()
        self.asked = 0

    def __call__(self) -> KubeletVersion | None:
        self.asked += 1
        self.may_answer.wait()
        return self.says


@pytest.fixture
def kubelet() -> Iterator[Kubelet]:
    one = Kubelet(OLDER)
    yield one
    one.may_answer.set()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kubelet.yaml"
    path.write_text(KUBELETS)
    return path


def configuration(file: Path, question: KubeletQuestion, patience_s: float = SHORT_S) -> Configuration:
    return Configuration([file], {}, question=question, patience_s=patience_s)


def test_a_kubelet_that_answers_in_time_decides(file: Path, kubelet: Kubelet) -> None:
    kubelet.may_answer.set()
    settings = configuration(file, KubeletQuestion(kubelet), 60).read()
    assert (settings.kubelet_rules.minor, settings.kubelet_known_by) == (36, PROGRAM)


def test_nobody_waits_for_a_kubelet_that_does_not_answer(file: Path, kubelet: Kubelet) -> None:
    one = configuration(file, KubeletQuestion(kubelet))
    settings = one.read()
    assert (settings.kubelet_rules.minor, settings.kubelet_known_by) == (37, "")
    # Nor is it asked a second time while it is asked.
    one.read()
    assert kubelet.asked == 1


def test_a_program_that_does_not_end(tmp_path: Path, file: Path) -> None:
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/kubelet.service").write_text("[Service]\nExecStart=/kubelet\n")
    program = tmp_path / "kubelet"
    # The end of the first leaves another one that has its output open.
    program.write_text("#!/bin/sh\nsleep 1000 &\nsleep 1000\n")
    program.chmod(0o755)
    question = KubeletQuestion(partial(kubelet_of_node, tmp_path, limit_s=2 * SHORT_S))
    one = configuration(file, question)
    assert one.read().kubelet_known_by == ""
    assert question.answer(60) is None


def test_what_comes_late_is_told_whoever_listens_first(file: Path, kubelet: Kubelet) -> None:
    told: list[KubeletVersion] = []
    question = KubeletQuestion(kubelet)
    one = configuration(file, question)
    one.read()
    kubelet.may_answer.set()
    assert question.answer(60) == OLDER
    one.when_kubelet_answers(told.append)
    # It was waited for.
    assert told == []

    for listens_before in (True, False):
        late, said = Kubelet(NEWER), threading.Event()
        question = KubeletQuestion(late)
        one = configuration(file, question)
        one.read()
        if listens_before:
            one.when_kubelet_answers(lambda found, said=said: (told.append(found), said.set()))
            late.may_answer.set()
        else:
            late.may_answer.set()
            while question.pending():
                pass
            one.when_kubelet_answers(lambda found, said=said: (told.append(found), said.set()))
        assert said.wait(PATIENCE_S)
        assert told.pop() == NEWER
        assert one.of_kubelet(NEWER).kubelet_known_by == PROGRAM


def test_the_last_answer_counts_while_the_next_is_waited_for(file: Path, kubelet: Kubelet) -> None:
    kubelet.may_answer.set()
    question = KubeletQuestion(kubelet)
    one = configuration(file, question, 60)
    assert one.read().kubelet_rules.minor == 36
    kubelet.may_answer.clear()
    assert configuration(file, question).read().kubelet_rules.minor == 36


def test_a_file_that_only_this_kubelet_takes_waits_for_it(
    file: Path, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CLUSTER_VERSION, "v1.36.3")
    file.write_text(f"{KUBELETS}{ONLY_NEWER}")
    kubelet.says = NEWER
    one = configuration(file, KubeletQuestion(kubelet))
    threading.Timer(4 * SHORT_S, kubelet.may_answer.set).start()
    assert one.read().kubelet_rules.minor == 37
    # Who has nothing more to say is not waited for.
    kubelet.says = OLDER
    with pytest.raises(ConfigError):
        one.read()


def test_a_file_that_no_kubelet_takes(file: Path, kubelet: Kubelet) -> None:
    file.write_text(f"{KUBELETS}topologyManagerPolicy: sometimes\n")
    kubelet.may_answer.set()
    with pytest.raises(ConfigError):
        configuration(file, KubeletQuestion(kubelet)).read()


def test_the_node_object_comes_before_the_program(file: Path, kubelet: Kubelet) -> None:
    kubelet.may_answer.set()
    one = configuration(file, KubeletQuestion(kubelet), 60)
    one.read()
    by_node = one.of_kubelet(KubeletVersion("v1.35.1", BY_NODE))
    assert (by_node.kubelet_rules.minor, by_node.kubelet_known_by) == (35, BY_NODE)
    assert one.of_kubelet(OLDER).kubelet_rules.minor == 35
    assert one.read().kubelet_rules.minor == 35


def test_the_clusters_version_where_there_is_no_kubelet(
    file: Path, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CLUSTER_VERSION, "v1.35.4")
    kubelet.says = None
    kubelet.may_answer.set()
    settings = configuration(file, KubeletQuestion(kubelet), 60).read()
    assert (settings.kubelet_rules.minor, settings.kubelet_known_by) == (35, CLUSTER_VERSION)
