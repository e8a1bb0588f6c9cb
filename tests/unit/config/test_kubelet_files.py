"""kubelet's file and its directory of drop-ins: read and merged as kubelet does it."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bayplan.config.keys import KEYS
from bayplan.config.kubelet_rules import eviction_bytes
from bayplan.config.load import load_settings, read_contents, settings_of
from bayplan.config.settings import Settings
from bayplan.errors import ConfigError
from bayplan.model.policy import TopologyPolicy
from bayplan.placement.foreign_cpusets import PinningManager
from bayplan.sets import CpuSet

GIB, MIB = 1 << 30, 1 << 20
HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

Files = Callable[..., list[Path]]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Writes kubelet's file, if there is one, and drop-ins by name; the paths to be given to --config."""

    def write(base: str | None, **drop_ins: str) -> list[Path]:
        directory = tmp_path / "kubelet.conf.d"
        directory.mkdir()
        for name, text in drop_ins.items():
            path = directory / name.replace("__", "/").replace("_", "-")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(f"{path.name}.conf").write_text(HEAD + text)
        if base is None:
            return [directory]
        (tmp_path / "config.yaml").write_text(HEAD + base)
        return [tmp_path / "config.yaml", directory]

    return write


def load(paths: list[Path]) -> Settings:
    return load_settings(paths, {"engine": ["kubelet"]})


def problems_of(paths: list[Path]) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load_settings(paths)
    return [str(problem) for problem in raised.value.problems]


def kept_mib(paths: list[Path]) -> int:
    return eviction_bytes(load(paths), 4 * GIB) // MIB


@pytest.mark.parametrize(
    ("base", "drop_ins", "expected_mib"),
    [
        # A table of a drop-in is merged into that of the file.
        ("evictionHard: {memory.available: 500Mi}", {"a": "evictionHard: {nodefs.available: 10%}"}, 500),
        ("evictionHard: {memory.available: 500Mi}", {"a": "evictionHard: {memory.available: 1Gi}"}, 1024),
        # The file without the table has kubelet's default, which is there before the first drop-in.
        ("", {"a": "evictionHard: {nodefs.available: 5%}"}, 100),
        ("evictionHard: null", {"a": "evictionHard: {nodefs.available: 5%}"}, 100),
        # A file with the table has no default beside it, unless it says so; a drop-in says so too late.
        ("evictionHard: {nodefs.available: 5%}", {"a": "evictionHard: {pid.available: 5%}"}, 0),
        ("evictionHard: {}", {"a": "evictionHard: {pid.available: 5%}"}, 0),
        (
            "mergeDefaultEvictionSettings: true\nevictionHard: {nodefs.available: 5%}",
            {"a": "evictionHard: {pid.available: 5%}"},
            100,
        ),
        ("evictionHard: {nodefs.available: 5%}", {"a": "mergeDefaultEvictionSettings: true"}, 0),
        # null takes away what was there, and nothing comes in its place.
        ("evictionHard: {memory.available: 500Mi}", {"a": "evictionHard: null"}, 0),
        ("evictionHard: {memory.available: 500Mi}", {"a": "evictionHard: {memory.available: null}"}, 0),
        ("", {"a": "evictionHard: {memory.available: null}"}, 0),
        (
            "evictionHard: {memory.available: 500Mi}",
            {"a": "evictionHard: null", "b": "evictionHard: {memory.available: 1Mi, pid.available: null}"},
            1,
        ),
        # Drop-ins alone start from nothing.
        (None, {"a": "evictionHard: {nodefs.available: 5%}"}, 0),
        (None, {"a": "evictionHard: {memory.available: 7Mi}", "b": "evictionHard: {pid.available: 5%}"}, 7),
        # What nobody sets has bayplan's default.
        (None, {"a": "podPidsLimit: 5"}, 100),
        ("", {"a": "podPidsLimit: 5"}, 100),
    ],
)
def test_eviction_is_what_it_is_to_kubelet(
    files: Files, base: str | None, drop_ins: dict[str, str], expected_mib: int
) -> None:
    assert kept_mib(files(base, **drop_ins)) == expected_mib


def test_tables_are_merged_lists_and_texts_replaced(files: Files) -> None:
    paths = files(
        "kubeReserved: {memory: 1Gi, cpu: 500m}\n"
        "featureGates: {MemoryQoS: true, CPUManagerPolicyAlphaOptions: true}\n"
        "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\n"
        "reservedSystemCPUs: 0-1\n"
        "topologyManagerPolicy: restricted\n",
        a="kubeReserved: {memory: 2Gi}\nfeatureGates: {CPUManagerPolicyAlphaOptions: false}\n",
        b="reservedMemory: [{numaNode: 1, limits: {memory: 2Gi}}]\ntopologyManagerPolicy: single-numa-node\n",
        c="reservedSystemCPUs: null\n",
    )
    settings = load(paths)
    assert settings.kube_reserved == {"memory": 2 * GIB, "cpu": 500_000_000}
    assert settings.feature_gates == {"MemoryQoS": True, "CPUManagerPolicyAlphaOptions": False}
    assert settings.reserved_memory == {1: {"memory": 2 * GIB}}
    assert settings.topology is TopologyPolicy.SINGLE_NUMA_NODE
    assert settings.reserved_cpus == CpuSet()
    assert [Path(source).name for source in settings.sources] == ["config.yaml", "a.conf", "b.conf", "c.conf"]


def test_an_empty_text_in_a_drop_in_is_kubelets_default_again(files: Files) -> None:
    settings = load(files("topologyManagerPolicy: restricted", a="topologyManagerPolicy: ''"))
    assert settings.topology is TopologyPolicy.NONE


def test_the_order_is_that_of_kubelets_walk(files: Files) -> None:
    """Directories stand among the files by their names; only .conf counts, also where the name begins so."""
    paths = files(None, **{"05__9": "systemReserved: {memory: 5Mi}", "10": "systemReserved: {memory: 10Mi}"})
    (directory,) = paths
    for name in ("04.conf", "1", "99.conf.bak", "99.yml.off", "README"):
        (directory / name).write_text(HEAD + "systemReserved: {memory: 1Mi}")
    (directory / ".conf").write_text(HEAD + "kubeReserved: {memory: 3Mi}")
    (directory / "..data").symlink_to(directory / "05")
    (directory / "20.conf").symlink_to(directory / "04.conf")
    settings = load(paths)
    names = [os.path.relpath(source, directory) for source in settings.sources]
    assert names == [".conf", "04.conf", "05/9.conf", "10.conf", "20.conf"]
    assert settings.system_reserved == {"memory": MIB}
    assert settings.kube_reserved == {"memory": 3 * MIB}


def test_drop_ins_that_are_named_one_by_one_are_merged_too(files: Files) -> None:
    base, directory = files("evictionHard: {memory.available: 1Gi}", a="evictionHard: {pid.available: 5%}")
    assert kept_mib([base, directory / "a.conf"]) == 1024


def test_our_own_files_replace_as_ever_and_stand_where_they_are_named(files: Files, tmp_path: Path) -> None:
    base, directory = files("evictionHard: {memory.available: 1Gi}", a="evictionHard: {pid.available: 5%}")
    ours = tmp_path / "ours.toml"
    ours.write_text('evictionHard = { "memory.available" = "3Mi" }')
    assert kept_mib([base, directory, ours]) == 3
    assert kept_mib([ours, base, directory]) == 1024
    assert kept_mib([base, ours, directory]) == 1024


def test_what_pins_is_named_by_the_file_that_says_so(files: Files) -> None:
    base, directory = files(
        "cpuManagerPolicy: static\nmemoryManagerPolicy: Static", a="memoryManagerPolicy: None\nx: 1", b="y: 1"
    )
    settings = load_settings([base, directory])
    assert settings.kubelet_managers == {PinningManager.CPU: str(base)}


def test_problems_are_named_by_the_file_that_is_to_be_changed(files: Files) -> None:
    base, directory = files(
        "evictionHard: {memory.available: 1Gi}\nkubeReserved: {memory: much}",
        a="evictionHard: {memory.available: lots}\nreservedSystemCPUs: 0-1\n",
        b="kubeReservedCgroup: /kube\n",
    )
    found = problems_of([base, directory])
    assert [line.partition(": found")[0] for line in found] == [
        f"{base}: kubeReserved.memory",
        f'{directory}/a.conf: evictionHard."memory.available"',
        f"{directory}/b.conf: reservedSystemCPUs",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["apiVersion: found nothing", "kind: found nothing"]),
        ("kind: KubeletConfiguration", ["apiVersion: found nothing"]),
        (HEAD.replace("v1beta1", "v2"), ["apiVersion: found 'kubelet.config.k8s.io/v2'"]),
        ("apiVersion: v1\nkind: Config", ["apiVersion: found 'v1'", "kind: found 'Config'"]),
        ("- a", ["the file: found a list"]),
        ("a: {", ["the file: "]),
    ],
)
def test_a_drop_in_that_kubelet_would_not_take(files: Files, text: str, words: list[str]) -> None:
    (directory,) = files(None)
    (directory / "10.conf").write_text(text)
    found = problems_of([directory])
    assert len(found) == len(words)
    for problem, begin in zip(found, words, strict=True):
        assert problem.startswith(begin)


@pytest.mark.parametrize("names", [[], ["a.json", "README"], [".hidden.toml"], ["a.conf.bak"]])
def test_a_directory_in_which_nothing_is_read_is_an_error(files: Files, names: list[str]) -> None:
    (directory,) = files(None)
    for name in names:
        (directory / name).write_text("{}")
    (problem,) = problems_of([directory])
    seen = f"only {', '.join(sorted(names))}" if names else "no file"
    assert problem.startswith(f"the directory: found {seen}, ")


def test_a_directory_with_files_of_both_kinds_is_an_error(files: Files) -> None:
    (directory,) = files(None, a="evictionHard: {pid.available: 5%}")
    (directory / "ours.toml").write_text("")
    (problem,) = problems_of([directory])
    assert problem.startswith("the directory: ")
    assert "ours.toml" in problem
    assert "a.conf" in problem


def test_other_peoples_conf_files_do_not_matter_beside_ours(files: Files) -> None:
    """/etc/bayplan itself may be named; the wrapper's settings are in it."""
    (directory,) = files(None)
    (directory / "bayplan.toml").write_text("logLevel = 'debug'")
    (directory / "oci-runtime.conf").write_text("runtime = /usr/bin/runc\n")
    assert load_settings([directory]).log_level == "debug"


def test_the_usual_directory_may_be_empty_and_says_what_it_does_not_read(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    assert load_settings(default_directory=tmp_path) == Settings()
    (tmp_path / "conf.d" / "10-mine.json").touch()
    (notice,) = load_settings(default_directory=tmp_path).notices
    assert notice.startswith(f"{tmp_path}/conf.d: the directory: ")
    assert "10-mine.json" in notice


def test_a_directory_of_no_end_is_not_walked_to_its_end(files: Files) -> None:
    (directory,) = files(None)
    (directory / "many").mkdir()
    for number in range(10_001):
        (directory / "many" / str(number)).touch()
    (problem,) = problems_of([directory])
    assert "10000" in problem


# --- what kubelet would not start with, and what it does not know ---


@pytest.mark.parametrize(
    ("base", "drop_ins", "wrong"),
    [
        ("featureGates: {Nonsense: true, Nix: false}", {},
         ["config.yaml: featureGates.Nonsense", "config.yaml: featureGates.Nix"]),
        ("", {"a": "featureGates: {Nonsense: true}", "b": "featureGates: {NodeSwap: true}"},
         ["a.conf: featureGates.Nonsense"]),
        ("", {"a": "featureGates: {Nonsense: true}", "b": "featureGates: {Nonsense: null}"}, []),
        # The file itself is decoded, and gets its defaults, before drop-ins are read.
        ("featureGates: {Nonsense: true}", {"a": "featureGates: {Nonsense: null}"},
         ["config.yaml: featureGates.Nonsense"]),
        ("featureGates: {ProcMountType: false}", {}, ["config.yaml: featureGates.ProcMountType"]),
        ("featureGates: {DRAPartitionableDevices: false}",
         {"a": "featureGates: {DRADeviceCompatibilityGroups: true}"},
         ["a.conf: featureGates.DRADeviceCompatibilityGroups"]),
        ("featureGates: {GenericWorkload: true, AllAlpha: true}", {}, []),
        ("", {"a": "featureGates: {AllAlpha: true}"},
         [f"a.conf: featureGates.{gate}" for gate in (
             "CompositePodGroup", "PodGroupPreemptionPolicy", "TopologyAwareWorkloadScheduling",
             "WorkloadWithJob")]),
    ],
)  # fmt: skip
def test_feature_gates_that_kubelet_does_not_take(
    files: Files, base: str, drop_ins: dict[str, str], wrong: list[str]
) -> None:
    """Each with kubelet 1.37.2 itself: it started, or named the gate."""
    paths = files(base, **drop_ins)[: None if drop_ins else 1]
    found = []
    try:
        load_settings(paths)
    except ConfigError as error:
        # A single file that is wrong is named once.
        found = [f"{error.source}: {problem.path}" for problem in error.problems]
    assert [re.sub(r"\S*/|configuration: ", "", one) for one in found] == wrong


POLICY, BACK_OFF = "imagePullCredentialsVerificationPolicy", "crashLoopBackOff"


@pytest.mark.parametrize(
    ("text", "gate", "by_default", "refused"),
    [
        # What kubelet 1.36.3 and 1.37.2 said; 1.34 and 1.35 have the same lines, and other defaults of gates.
        ("cpuCFSQuotaPeriod: 5ms", "CustomCPUCFSQuotaPeriod", "1.34 1.35", "1.34 1.35 1.36 1.37"),
        ("cpuCFSQuotaPeriod: 100ms", "CustomCPUCFSQuotaPeriod", "", ""),
        (f"{BACK_OFF}: {{maxContainerRestartPeriod: 5m0s}}", "KubeletCrashLoopBackOffMax",
         "1.34", "1.34 1.35 1.36 1.37"),
        (f"{BACK_OFF}: {{}}", "KubeletCrashLoopBackOffMax", "", ""),
        ('defaultPodSysctls: {net.ipv4.tcp_syncookies: "1"}', "DefaultPodSysctls", "1.37", "1.37"),
        ("enableSystemLogHandler: true\nenableSystemLogQuery: true", "NodeLogQuery",
         "1.34 1.35", "1.34 1.35"),
        ("enableSystemLogQuery: false", "NodeLogQuery", "", ""),
        ("imageMaximumGCAge: 24h", "ImageMaximumGCAge", "", "1.34"),
        ("imageMaximumGCAge: 0s", "ImageMaximumGCAge", "", ""),
        (f"{POLICY}: NeverVerifyPreloadedImages", "KubeletEnsureSecretPulledImages",
         "1.34", "1.34 1.35 1.36 1.37"),
        ("serverTLSBootstrap: true", "RotateKubeletServerCertificate", "", "1.34 1.35 1.36 1.37"),
        ("serverTLSBootstrap: false", "RotateKubeletServerCertificate", "", ""),
        ("shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 10}]",
         "GracefulNodeShutdownBasedOnPodPriority", "", "1.34 1.35 1.36 1.37"),
    ],
)  # fmt: skip
def test_a_key_takes_its_feature_gate(
    files: Files, text: str, gate: str, by_default: str, refused: str
) -> None:
    """``by_default``: the versions that refuse it as it is; ``refused``: those that do with the gate off,
    where it is there and may be off."""
    (plain, _) = files(text)
    off = plain.with_name("off.yaml")
    off.write_text(f"{plain.read_text()}\nfeatureGates: {{{gate}: false}}\n")
    key = text.rpartition("\n")[2].partition(":")[0]
    for version in ("1.34", "1.35", "1.36", "1.37"):
        assert (key in wrong_keys([plain], version)) == (version in by_default.split())
        gate_is_wrong = f"featureGates.{gate}" in wrong_keys([off], version)
        assert gate_is_wrong or (key in wrong_keys([off], version)) == (version in refused.split())


def wrong_keys(paths: list[Path], version: str) -> list[str]:
    try:
        load_settings(paths, {"kubeletVersion": [version]})
    except ConfigError as error:
        return [problem.path for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("base", "drop_in", "wrong"),
    [
        ("", "featureGates: {KubeletCrashLoopBackOffMax: false}", [BACK_OFF]),
        ("featureGates: {KubeletCrashLoopBackOffMax: false}", "port: 10250", []),
        ("", f"featureGates: {{KubeletEnsureSecretPulledImages: false}}\n{POLICY}: null", []),
        (None, "featureGates: {KubeletEnsureSecretPulledImages: false, KubeletCrashLoopBackOffMax: false}",
         [BACK_OFF, POLICY]),
    ],
)  # fmt: skip
def test_a_default_that_stood_there_before_the_first_drop_in_lasts(
    files: Files, base: str | None, drop_in: str, wrong: list[str]
) -> None:
    """Each with kubelet 1.37.2 itself."""
    assert wrong_keys(files(base, a=drop_in), "1.37") == wrong


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        ("1.36", False),
        ("1.37", True),
        ("v1.37.2+k3s1", True),
        # OpenShift's kubelet warns, and starts; of other versions the gates are not known here.
        ("v1.37.1+a1b2c3d", False),
        ("1.33", False),
        ("1.38", False),
    ],
)
def test_which_gates_there_are_depends_on_the_kubelet(files: Files, version: str, refused: bool) -> None:
    (path, _) = files("featureGates: {SidecarContainers: true}")
    if refused:
        with pytest.raises(ConfigError):
            load_settings([path], {"kubeletVersion": [version]})
    else:
        load_settings([path], {"kubeletVersion": [version]})


@pytest.mark.parametrize("version", ["", "kubelet.config.k8s.io/v1alpha1", "kubelet.config.k8s.io/v1", "v1"])
def test_a_file_of_another_api_version_is_refused(files: Files, version: str) -> None:
    (path, _) = files("")
    path.write_text(f"apiVersion: {version}\nkind: KubeletConfiguration\n")
    (problem,) = problems_of([path])
    assert problem.startswith("apiVersion: ")


def test_keys_that_kubelet_does_not_know_are_named_once(files: Files) -> None:
    """It warns, and starts without them; their case counts."""
    paths = files(
        "cpumanagerpolicy: static\nseed: 1\nauthentication: {}\n",
        a="defaultPodSysctls: []\nseed: 2\nmemoryManagerPolicy: Static",
    )
    settings = load_settings(paths, {"kubeletVersion": ["1.36"], "engine": ["kubelet"]})
    assert settings.cpu_manager == "none"
    said = [re.fullmatch(r"\S+/([\w.]+): (\w+): .*", notice) for notice in settings.notices]
    assert [found.groups() for found in said if found] == [
        ("config.yaml", "cpumanagerpolicy"),
        ("config.yaml", "seed"),
        ("a.conf", "defaultPodSysctls"),
        ("a.conf", "seed"),
    ]
    newer = load_settings(paths, {"kubeletVersion": ["1.37"]})
    assert [notice for notice in newer.notices if "defaultPodSysctls" in notice] == []


FLAGS = {
    "eviction-hard": ["memory.available<750Mi,nodefs.available<10%"],
    "kube-reserved": ["cpu=200m,memory=500Mi"],
    "feature-gates": ["MemoryQoS=true,AllAlpha=false"],
    "reserved-cpus": ["0"],
    "topology-manager-policy": ["restricted"],
    "cpu-manager-policy": ["static"],
    "max-pods": ["110"],
    "kubeconfig": ["/etc/kubernetes/kubelet.conf"],
}
SAME = """
evictionHard: {memory.available: 750Mi, nodefs.available: 10%}
kubeReserved: {cpu: 200m, memory: 500Mi}
featureGates: {MemoryQoS: true}
reservedSystemCPUs: "0"
topologyManagerPolicy: restricted
cpuManagerPolicy: static
"""


@pytest.mark.parametrize(
    ("text", "engine", "differ"),
    [
        ("", "exact", ["eviction-hard", "kube-reserved", "reserved-cpus", "topology-manager-policy"]),
        ("featureGates: {MemoryQoS: false}", "kubelet", [*FLAGS][:-2]),
        (SAME, "exact", []),
        (SAME, "kubelet", []),
        (SAME.replace("750Mi", "100Mi"), "exact", ["eviction-hard"]),
    ],
)
def test_flags_of_kubelet_that_say_something_else_than_its_files(
    files: Files, text: str, engine: str, differ: list[str]
) -> None:
    def said(of_bayplan: dict[str, list[str]]) -> list[str]:
        settings = settings_of(contents, of_bayplan, kubelets_flags=FLAGS)
        flags = [re.match(r"kubelet runs with --([a-z-]+)=", notice) for notice in settings.notices]
        return sorted(found[1] for found in flags if found)

    contents = read_contents(files(text)[:1])
    chosen = {"engine": [engine], "kubeletVersion": ["1.37"]}
    assert said(chosen) == sorted(differ)
    # Once baypland has them too there is nothing to say.
    keys = {key.flag: key.name for key in KEYS.values()}
    assert said(chosen | {keys[flag]: FLAGS[flag] for flag in differ if flag != "feature-gates"}) == [
        flag for flag in differ if flag == "feature-gates"
    ]


@pytest.mark.parametrize(
    ("text", "flags", "expected"),
    [
        ("", {"cpu-manager-policy": ["none", "static"]}, {PinningManager.CPU: "kubelet's command line"}),
        ("memoryManagerPolicy: Static", {"memory-manager-policy": ["None"]}, {}),
        ("cpuManagerPolicy: static", {"memory-manager-policy": ["Static"]},
         {PinningManager.CPU: "FILE", PinningManager.MEMORY: "kubelet's command line"}),
    ],
)  # fmt: skip
def test_flags_of_kubelet_decide_whether_it_pins(
    files: Files, text: str, flags: dict[str, list[str]], expected: dict[PinningManager, str]
) -> None:
    (path, _) = files(text)
    found = settings_of(read_contents([path]), kubelets_flags=flags).kubelet_managers
    assert {one: where.replace(str(path), "FILE") for one, where in found.items()} == expected


def test_flags_that_kubelet_would_not_start_with_are_its_business(files: Files) -> None:
    contents = read_contents(files("")[:1])
    flags = {"eviction-hard": ["memory"], "kube-reserved": ["x"], "reserved-cpus": ["a"]}
    assert settings_of(contents, kubelets_flags=flags).notices == settings_of(contents).notices


def test_without_a_file_of_kubelets_its_flags_are_nobodys_business(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("")
    assert settings_of(read_contents([path]), kubelets_flags=FLAGS).notices == ()
