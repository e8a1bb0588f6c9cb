"""Files and flags: what they come to, and that everything wrong in them is said at once, by its path."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.config.keys import KEYS
from bayplan.config.kubelet_files import DEFAULT_EVICTION_HARD
from bayplan.config.kubelet_rules import eviction_bytes
from bayplan.config.load import load_settings, read_contents, settings_of
from bayplan.config.settings import MemoryPressure, Settings, Undecided
from bayplan.errors import ConfigError, Problem
from bayplan.host.kubelet_program import KubeletVersion
from bayplan.kubelet.eviction_manager import ThresholdValue, parse_percentage, read_threshold
from bayplan.kubelet.manager_options import MemoryManagerPolicy
from bayplan.model.kubelet_version import NEWEST
from bayplan.model.policy import (
    CpuPool,
    CpuRule,
    Defragment,
    KeepWhole,
    MemoryReservationPolicy,
    OutsideRequests,
    PlacementFiles,
    PlacementStrategy,
    PoolBounds,
    TopologyPolicy,
    TopologyScope,
)
from bayplan.placement.foreign_cpusets import PinningManager
from bayplan.sets import CpuSet

GIB, MIB = 1 << 30, 1 << 20
THEIRS = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

FULL_TOML = """
engine = "kubelet"
kubeletVersion = "v1.35.1"
placementStrategy = "spread"
keepWhole = "node"
topologyManagerPolicy = "single-numa-node"
topologyManagerScope = "pod"
topologyManagerPolicyOptions = { prefer-closest-numa-nodes = "true", max-allowable-numa-nodes = 16 }
memoryManagerPolicy = "BestEffort"
cpuManagerPolicy = "static"
cpuManagerPolicyOptions = { full-pcpus-only = true, distribute-cpus-across-numa = "false" }
reservedSystemCPUs = "0-1,8"
sharedCPUsMinimum = 4
cpuRules = [
    { namespaces = ["pay"], labels.app = "db", containers = ["main"], cpus = "isolated", cpuKind = "middle" },
]
cpuPools = { db = { minimum = 2, maximum = 8, cpuKind = "performance" }, logs = { maximum = 2 } }
kubeReserved = { cpu = "100m", memory = "500Mi", "ephemeral-storage" = "1Gi", pid = "1000" }
systemReserved = { memory = 1073741824, cpu = 1, "hugepages-2048Ki" = "4Mi" }
evictionHard = { "memory.available" = "5%", "nodefs.available" = "10%" }
evictionSoft = { "memory.available" = "0%", "pid.available" = 200 }
evictionSoftGracePeriod = { "pid.available" = "1m30s" }
evictionMinimumReclaim = { "memory.available" = "0" }
evictionPressureTransitionPeriod = "1m0s"
mergeDefaultEvictionSettings = true
measuredReservation = false
shadow = true
deviceMemory = { "1,3" = "0009:01:00.0", "8" = "none" }
featureGates = { MemoryQoS = true }
memoryThrottlingFactor = 0.8
memoryReservationPolicy = "TieredReservation"
singleProcessOOMKill = true
placementFiles = "all"
placementDirectory = "/run/b/placements"
cdiDirectory = "/run/b/cdi"
setOomScoreAdj = false
defaultMemoryLimit = { Burstable = "4Gi", BestEffort = "1Gi" }
annotationErrors = "refuse"
forbiddenAnnotations = ["cpu-partition", "irqs"]
whenDown = "refuse"
whenDownExcept = ["kube-system", "storage"]
requestsOutsideKubelet = "nothing"
nriSocket = "/run/other/nri.sock"
pluginName = "bay-2"
pluginIndex = "07"
requestDeadline = "750ms"
ociSocket = "/run/b/oci.sock"
ociDeadline = "900ms"
returnDeadline = "1m"
returnMaxMove = "2Gi"
crioSocket = "/run/b/crio.sock"
containerdSocket = "/run/b/containerd.sock"
ociUndecided = "refuse"
stateDirectory = "/srv/bayplan"
adminSocket = "/run/b/admin.sock"
agentSocket = "/run/b/agent.sock"
agentGroup = "watchers"
logLevel = "debug"
memoryPressure = "off"
pageMoveRate = "512Mi"
defragment = "off"
relocationsPerHour = 3
hugepagePools = { 0-1 = { hugepages-2Mi = { minimum = "64Mi", maximum = "8Gi" } } }
percpuPagelistHighFraction = 64
logFormat = "json"
recording = "/srv/bayplan/recording"

[[reservedMemory]]
numaNode = 0
limits = { memory = "1Gi", "hugepages-1Gi" = "1Gi" }

[[reservedMemory]]
numaNode = 7
limits = { memory = "2148Mi" }
"""
FIVE, TEN = parse_percentage("5%"), parse_percentage("10%")
FULL = Settings(
    placement_strategy=PlacementStrategy.SPREAD,
    keep_whole=KeepWhole.NODE,
    memory_pressure=MemoryPressure.OFF,
    page_move_rate_bytes=512 << 20,
    defragment=Defragment.OFF,
    relocations_per_hour=3,
    hugepage_pools={node: {2 << 20: PoolBounds(64 << 20, 8 << 30)} for node in (0, 1)},
    list_fraction=64,
    engine="kubelet",
    kubelet_minor=35,
    topology=TopologyPolicy.SINGLE_NUMA_NODE,
    topology_scope=TopologyScope.POD,
    topology_options={"prefer-closest-numa-nodes": "true", "max-allowable-numa-nodes": "16"},
    memory_manager=MemoryManagerPolicy.BEST_EFFORT,
    cpu_options={"full-pcpus-only": "true", "distribute-cpus-across-numa": "false"},
    reserved_memory={0: {"memory": GIB, "hugepages-1Gi": GIB}, 7: {"memory": 2148 * MIB}},
    reserved_cpus=CpuSet([0, 1, 8]),
    shared_cpus_minimum=4,
    cpu_rules=(CpuRule(frozenset({"pay"}), {"app": "db"}, frozenset({"main"}), "isolated", "middle"),),
    cpu_pools={"db": CpuPool(2, 8, "performance"), "logs": CpuPool(1, 2)},
    kube_reserved={"cpu": 100_000_000, "memory": 500 * MIB},
    system_reserved={"memory": GIB, "cpu": 10**9, "hugepages-2Mi": 4 * MIB},
    eviction_hard={
        "memory.available": ThresholdValue(share=FIVE),
        "nodefs.available": ThresholdValue(share=TEN),
    },
    eviction_soft={"memory.available": None, "pid.available": ThresholdValue(200)},
    eviction_grace_ns={"pid.available": 90_000_000_000},
    eviction_min_reclaim={"memory.available": ThresholdValue(0)},
    eviction_transition_ns=60_000_000_000,
    merge_default_eviction=True,
    measured_reservation=False,
    shadow=True,
    device_memory={1: "0009:01:00.0", 3: "0009:01:00.0", 8: ""},
    feature_gates={"MemoryQoS": True},
    memory_throttling_factor=0.8,
    memory_reservation=MemoryReservationPolicy.TIERED,
    single_process_oom_kill=True,
    placement_files=PlacementFiles.ALL,
    placement_directory=Path("/run/b/placements"),
    cdi_directory=Path("/run/b/cdi"),
    set_oom_score_adj=False,
    default_memory_limit_bytes={"Burstable": 4 * GIB, "BestEffort": GIB},
    refuse_wrong_annotations=True,
    forbidden_annotations=frozenset({"cpu-partition", "irqs"}),
    refuse_undecided=True,
    undecided_namespaces=frozenset({"kube-system", "storage"}),
    outside_requests=OutsideRequests.NOTHING,
    nri_socket=Path("/run/other/nri.sock"),
    plugin_name="bay-2",
    plugin_index="07",
    request_deadline_ms=750,
    oci_socket=Path("/run/b/oci.sock"),
    oci_deadline_ms=900,
    return_deadline_ms=60_000,
    return_most_bytes=2 * GIB,
    crio_socket=Path("/run/b/crio.sock"),
    containerd_socket=Path("/run/b/containerd.sock"),
    oci_undecided=Undecided.REFUSE,
    state_directory=Path("/srv/bayplan"),
    admin_socket=Path("/run/b/admin.sock"),
    agent_socket=Path("/run/b/agent.sock"),
    agent_group="watchers",
    log_level="debug",
    log_format="json",
    recording=Path("/srv/bayplan/recording"),
)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def writer(content: str, name: str = "bayplan.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    return writer


def problems_of(*paths: Path, **flags: list[str]) -> list[str]:
    """Every problem, as ``path: found``, of a configuration that must be wrong."""
    with pytest.raises(ConfigError) as raised:
        load_settings(paths, flags, default_directory=Path("/nonexistent"))
    return [f"{one.path}: {one.found}" for one in raised.value.problems]


def paths_of(path: Path, flags: dict[str, list[str]] | None = None) -> list[str]:
    """What is wrong with a configuration that must be wrong."""
    with pytest.raises(ConfigError) as raised:
        load_settings([path], flags, default_directory=Path("/nonexistent"))
    return [one.path for one in raised.value.problems]


def test_nothing_configured_is_all_defaults(tmp_path: Path) -> None:
    assert load_settings((), {}, tmp_path) == Settings()


def test_every_key_in_toml(write: Write) -> None:
    path = write(FULL_TOML)
    settings = load_settings([path])
    assert settings.sources == (str(path),)
    assert _without_sources(settings) == FULL
    assert set(__import__("tomllib").loads(FULL_TOML)) == set(KEYS)


def test_the_same_keys_in_yaml(write: Write) -> None:
    import tomllib

    import yaml

    path = write(yaml.safe_dump(tomllib.loads(FULL_TOML)), "bayplan.yaml")
    assert _without_sources(load_settings([path])) == FULL


def _without_sources(settings: Settings) -> Settings:
    from msgspec.structs import replace

    return replace(settings, sources=(), notices=(), kubelet_managers={}, kubelet_known_by="")


# --- several sources ---


def test_later_files_and_then_flags_win(write: Write) -> None:
    first = write('logLevel = "debug"\npluginIndex = "10"\nstateDirectory = "/a"', "a.toml")
    second = write("pluginIndex: '20'\nstateDirectory: /b\n", "b.yaml")
    settings = load_settings([first, second], {"stateDirectory": ["/x", "/c"]})
    assert (settings.log_level, settings.plugin_index) == ("debug", "20")
    assert settings.state_directory == Path("/c")
    assert settings.sources == (str(first), str(second))


def test_a_later_file_replaces_a_whole_table(write: Write) -> None:
    first = write('defaultMemoryLimit = { Burstable = "4Gi", BestEffort = "1Gi" }', "a.toml")
    second = write('defaultMemoryLimit = { Burstable = "2Gi" }', "b.toml")
    assert load_settings([first, second]).default_memory_limit_bytes == {"Burstable": 2 * GIB}


def test_the_default_file_and_its_drop_ins_in_lexical_order(write: Write, tmp_path: Path) -> None:
    write('logLevel = "error"\npluginIndex = "10"\npluginName = "main"', "bayplan.toml")
    write('pluginIndex = "20"', "conf.d/20-b.toml")
    write("pluginIndex: '30'", "conf.d/30-c.yml")
    write('pluginIndex = "15"', "conf.d/10-a.toml")
    write("garbage", "conf.d/40.toml.rpmsave")
    write("garbage = [", "conf.d/.hidden.toml")
    settings = load_settings((), {}, tmp_path)
    assert (settings.plugin_index, settings.plugin_name, settings.log_level) == ("30", "main", "error")
    assert [Path(one).name for one in settings.sources] == [
        "bayplan.toml",
        "10-a.toml",
        "20-b.toml",
        "30-c.yml",
    ]


def test_a_directory_stands_for_its_files(write: Write, tmp_path: Path) -> None:
    write('pluginIndex = "20"', "some/20.toml")
    write('pluginIndex = "10"', "some/10.toml")
    assert load_settings([tmp_path / "some"]).plugin_index == "20"


def test_explicit_files_replace_the_default_ones(write: Write, tmp_path: Path) -> None:
    write('pluginIndex = "10"', "bayplan.toml")
    write('pluginIndex = "11"', "conf.d/a.toml")
    other = write('logLevel = "debug"', "other.toml")
    assert load_settings([other], {}, tmp_path).plugin_index == "90"


def test_all_problems_of_all_sources_are_reported_at_once(write: Write) -> None:
    first = write('logLevel = "loud"\nreservedMemry = 1', "a.toml")
    second = write("pluginIndex: 5\nadminSocket: relative\n", "b.yaml")
    third = write("this is [ not toml", "c.toml")
    with pytest.raises(ConfigError) as raised:
        load_settings(
            [first, second, third], {"requestDeadline": ["never"], "reservedMemory": ["memory=1Gi"]}
        )
    assert raised.value.source == "configuration"
    assert {one.path for one in raised.value.problems} == {
        f"{first}: logLevel",
        f"{first}: reservedMemry",
        f"{second}: pluginIndex",
        f"{second}: adminSocket",
        f"{third}: the file",
        "command line: --reserved-memory",
        "command line: --request-deadline",
    }


def test_one_source_is_named_once(write: Write) -> None:
    path = write('logLevel = "loud"')
    with pytest.raises(ConfigError) as raised:
        load_settings([path])
    assert raised.value.source == str(path)
    assert raised.value.problems == (Problem("logLevel", "'loud'", "debug or info or warning or error"),)


# --- files that are no configuration ---


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.toml", b"x = ", "Invalid value"),
        ("a.toml", b"x = 1\nx = 2", "Cannot overwrite"),
        ("a.toml", b"\xff\xfe", "not UTF-8"),
        ("a.yaml", b"a: [1", "line 1, column"),
        ("a.yaml", b"logLevel: info\nlogLevel: debug", "logLevel"),
        ("a.yaml", b"kubeReserved: {memory: 1Gi, memory: 2Gi}", "the key memory"),
        ("a.yaml", b"a: 1\n---\nb: 2\n", "document"),
        ("a.yaml", b"- a\n- b\n", "a list"),
        ("a.yaml", b"!!python/object/apply:os.system ['false']", "constructor"),
        ("a.yaml", b"? [a]\n: b\n", "unhashable"),
        ("a.yaml", b"a: 2026-99-99", "no timestamp in line 1, column 4"),
        ("a.yaml", b"a: !!bool x", "'x' is no bool in line 1"),
        ("a.yaml", b"a: !!timestamp x", "'x' is no timestamp in line 1"),
        ("a.yaml", b"a: !!map [1]", "line 1, column 4"),
        ("a.yaml", b"\0", "special characters"),
        ("a.yaml", b"{a: " * 5000, "recursion"),
        ("a.toml", b"a = " + b"[" * 5000, "recursion"),
        ("a.toml", b"a = " + b"9" * 5000, "digits"),
        ("a.ini", b"", "a.ini"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    [problem] = problems_of(tmp_path / name)
    assert words in problem


def test_a_byte_order_mark_is_no_content(write: Write) -> None:
    assert load_settings([write("\ufefflogLevel = 'debug'")]).log_level == "debug"


@pytest.mark.parametrize("value", ['"' + "x" * 100_000 + '"', "0x" + "f" * 6000])
@pytest.mark.parametrize("key", KEYS)
def test_what_was_found_is_shown_in_part_where_it_is_long(write: Write, key: str, value: str) -> None:
    [problem] = problems_of(write(f"{key} = {value}"))
    assert problem.startswith(f"{key}: ")
    assert len(problem) < 1000


def test_a_flag_with_thousands_of_digits_is_shown_in_part() -> None:
    with pytest.raises(ConfigError, match=r"--reserved-memory\[0\].numaNode: found '9+\[and 4800 more"):
        load_settings((), {"reservedMemory": [f"{'9' * 5000}:memory=1Gi"]}, Path("/nowhere"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings([tmp_path / "none.toml"])
    assert raised.value.source == str(tmp_path / "none.toml")
    assert raised.value.problems[0].found == os.strerror(errno.ENOENT)


def test_a_path_that_cannot_even_be_looked_at_is_named() -> None:
    too_long = Path("/" + "x" * 300)
    with pytest.raises(ConfigError, match="the file: "):
        load_settings([too_long])
    with pytest.raises(ConfigError, match=r"bayplan\.toml: the file: "):
        load_settings(default_directory=too_long)


@pytest.mark.root
def test_a_directory_that_is_somebody_elses_is_named(tmp_path: Path) -> None:
    program = (
        "import os, sys; os.setuid(65534); from pathlib import Path\n"
        "from bayplan.config.load import load_settings\n"
        "try: load_settings(default_directory=Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    tmp_path.chmod(0o700)
    run = [sys.executable, "-c", "import bayplan.config.load, bayplan.config.keys, tomllib\n" + program]
    finished = subprocess.run([*run, str(tmp_path)], capture_output=True, text=True, check=True)
    assert finished.stdout.startswith("ConfigError configuration: ")
    assert f"{tmp_path}/bayplan.toml: the file: " in finished.stdout


@pytest.mark.parametrize("name", ["empty.toml", "empty.yaml"])
def test_an_empty_file_says_nothing(write: Write, name: str) -> None:
    assert _without_sources(load_settings([write("", name)])) == Settings()


# --- values ---


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("topologyManagerPolicy = 'strict'", "topologyManagerPolicy: 'strict'"),
        ("topologyManagerPolicy = true", "topologyManagerPolicy: true"),
        ("topologyManagerScope = 'node'", "topologyManagerScope: 'node'"),
        ("memoryManagerPolicy = 'None'", "memoryManagerPolicy: 'None'"),
        ("cpuManagerPolicy = 'none'", "cpuManagerPolicy: 'none'"),
        ("reservedSystemCPUs = 3", "reservedSystemCPUs: 3 (int)"),
        ("reservedSystemCPUs = '3-1'", "reservedSystemCPUs: '3-1'"),
        ("kubeReserved = 'memory=1Gi'", "kubeReserved: 'memory=1Gi'"),
        ("kubeReserved = { memory = '1GB' }", "kubeReserved.memory: '1GB'"),
        ("kubeReserved = { memory = '-1Gi' }", "kubeReserved.memory: '-1Gi'"),
        ("kubeReserved = { memory = 1.5 }", "kubeReserved.memory: 1.5 (float)"),
        ("kubeReserved = { cpu = 'lots' }", "kubeReserved.cpu: 'lots'"),
        ("systemReserved = { 'hugepages-x' = '3Mi' }", "systemReserved.hugepages-x: 'x'"),
        ("evictionHard = { 'memory.available' = '101%' }", "evictionHard.\"memory.available\": '101%'"),
        ("evictionHard = { 'memory.available' = 'x%' }", "evictionHard.\"memory.available\": 'x%'"),
        ("evictionHard = { 'memory.available' = '-5%' }", "evictionHard.\"memory.available\": '-5%'"),
        ("evictionHard = { 'memory.available' = '0' }", "evictionHard.\"memory.available\": '0'"),
        ("evictionHard = { 'memory.available' = 'nan%' }", "evictionHard.\"memory.available\": 'nan%'"),
        ("evictionHard = { 'memory.available' = true }", 'evictionHard."memory.available": true'),
        ("evictionHard = { 'memory.available' = 0.5 }", 'evictionHard."memory.available": 0.5 (float)'),
        (
            "engine = 'kubelet'\nevictionMinimumReclaim = { 'pid.available' = '0%' }",
            "evictionMinimumReclaim.\"pid.available\": '0%'",
        ),
        (
            "engine = 'kubelet'\nevictionSoftGracePeriod = { 'pid.available' = '30mins' }",
            "evictionSoftGracePeriod.\"pid.available\": '30mins'",
        ),
        ("evictionSoft = { 'pid.available' = 100 }", "evictionSoft: pid.available without a grace period"),
        ("measuredReservation = 'yes'", "measuredReservation: 'yes'"),
        ("deviceMemory = { 'x' = 'gpu' }", "deviceMemory.x: 'x'"),
        ("deviceMemory = { '1' = 'a b' }", "deviceMemory.1: 'a b'"),
        ("featureGates = { MemoryQoS = 'true' }", "featureGates.MemoryQoS: 'true'"),
        ("memoryThrottlingFactor = 0", "memoryThrottlingFactor: 0 (int)"),
        ("memoryThrottlingFactor = 1.01", "memoryThrottlingFactor: 1.01 (float)"),
        ("memoryThrottlingFactor = nan", "memoryThrottlingFactor: nan (float)"),
        ("memoryThrottlingFactor = true", "memoryThrottlingFactor: true"),
        ("memoryReservationPolicy = 'Tiered'", "memoryReservationPolicy: 'Tiered'"),
        ("singleProcessOOMKill = 1", "singleProcessOOMKill: 1 (int)"),
        ("defaultMemoryLimit = { Burstable = 0 }", "defaultMemoryLimit.Burstable: 0 (int)"),
        ("annotationErrors = 'ignore'", "annotationErrors: 'ignore'"),
        ("nriSocket = 'nri.sock'", "nriSocket: 'nri.sock'"),
        ("pluginName = ''", "pluginName: ''"),
        ("pluginName = 'ä'", "pluginName: 'ä'"),
        ("pluginIndex = '5'", "pluginIndex: '5'"),
        ("pluginIndex = '٣٤'", "pluginIndex: '٣٤'"),
        ("requestDeadline = '5ms'", "requestDeadline: '5ms'"),
        ("requestDeadline = 1", "requestDeadline: 1 (int)"),
        ("requestDeadline = '1h'", "requestDeadline: '1h'"),
        ("stateDirectory = ['/a']", "stateDirectory: a list"),
        (f"adminSocket = '/{'x' * 100}'", f"adminSocket: '/{'x' * 100}'"),
        ("logLevel = 'INFO'", "logLevel: 'INFO'"),
        ("logFormat = 1979-05-27", "logFormat: 1979-05-27 (date)"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(write: Write, content: str, problem: str) -> None:
    assert problems_of(write(content)) == [problem]


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ("kubeReserved = { disk = '1Gi' }", "kubeReserved.disk"),
        ("systemReserved = { 'hugepages-3Mi' = '3Mi' }", "systemReserved.hugepages-3Mi"),
        ("deviceMemory = { '1-2' = 'a', '2' = 'b' }", "deviceMemory.2"),
        ("evictionHard = { 'memory.avail' = '1Gi' }", 'evictionHard."memory.avail"'),
        ("featureGates = { MemoryQOS = true }", "featureGates.MemoryQOS"),
        ("defaultMemoryLimit = { Guaranteed = '1Gi' }", "defaultMemoryLimit.Guaranteed"),
        ("[bayplan]\nlogLevel = 'info'", "bayplan"),
    ],
)
def test_a_key_that_cannot_be_is_named(write: Write, content: str, path: str) -> None:
    assert paths_of(write(content)) == [path]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("reservedMemory = {}", ["reservedMemory"]),
        ("reservedMemory = ['0:memory=1Gi']", ["reservedMemory[0]"]),
        ("cpuRules = 'a'", ["cpuRules"]),
        (
            "cpuRules = [{ cpus = 'exclusive=0' }, { cpuKind = 'big' }]",
            ["cpuRules[0].cpus", "cpuRules[1].cpuKind"],
        ),
        ("cpuRules = [{ labels = { app = 1 }, cpus = 'shared' }]", ["cpuRules[0].labels.app"]),
        ("cpuRules = [{ namespaces = ['a'] }]", ["cpuRules[0]"]),
        ("cpuRules = [{ pods = ['a'], cpus = 'shared' }]", ["cpuRules[0].pods"]),
        (
            "cpuRules = [{ cpus = 'shared' }, { namespaces = ['a'], cpus = 'exclusive' }]",
            ["cpuRules[1]"],
        ),
        ("cpuRules = [{ cpus = 'pool=A b' }]", ["cpuRules[0].cpus"]),
        ("cpuRules = [{ cpus = 'pool=db', cpuKind = 'performance' }]", ["cpuRules[0].cpuKind"]),
        ("cpuPools = ['db']", ["cpuPools"]),
        ("cpuPools = { db = 2 }", ["cpuPools.db"]),
        ("cpuPools = { db = { minimum = 2 } }", ["cpuPools.db"]),
        ("cpuPools = { db = { minimum = 3, maximum = 2 } }", ["cpuPools.db.minimum"]),
        ("cpuPools = { db = { minimum = 0, maximum = 2 } }", ["cpuPools.db.minimum"]),
        ("cpuPools = { db = { maximum = 2, cpuKind = 'big' } }", ["cpuPools.db.cpuKind"]),
        ("cpuPools = { db = { maximum = 2, size = 1 } }", ["cpuPools.db.size"]),
        ("cpuPools = { 'D B' = { maximum = 2 } }", ['cpuPools."D B"']),
        ("hugepagePools = '2Gi'", ["hugepagePools"]),
        ("hugepagePools = { x = {} }", ["hugepagePools.x"]),
        ("hugepagePools = { 0 = { memory = { maximum = '1Gi' } } }", ["hugepagePools.0.memory"]),
        (
            "hugepagePools = { 0 = { hugepages-2048Ki = { maximum = '1Gi' } } }",
            ["hugepagePools.0.hugepages-2048Ki"],
        ),
        ("hugepagePools = { 0 = { hugepages-2Mi = '1Gi' } }", ["hugepagePools.0.hugepages-2Mi"]),
        ("hugepagePools = { 0 = { hugepages-2Mi = { minimum = 0 } } }", ["hugepagePools.0.hugepages-2Mi"]),
        (
            "hugepagePools = { 0 = { hugepages-2Mi = { minimum = '2Gi', maximum = '1Gi' } } }",
            ["hugepagePools.0.hugepages-2Mi.minimum"],
        ),
        (
            "hugepagePools = { 0 = { hugepages-1Gi = { maximum = '1536Mi' } } }",
            ["hugepagePools.0.hugepages-1Gi.maximum"],
        ),
        (
            "hugepagePools = { 0-1 = {}, 1-2 = { hugepages-2Mi = { maximum = '1Gi', least = 1 } } }",
            ["hugepagePools.1-2.hugepages-2Mi.least"],
        ),
        ("hugepagePools = { 0-1 = {}, 1-2 = {} }", ["hugepagePools.1-2"]),
        (
            "reservedMemory = [{}]",
            ["reservedMemory[0].numaNode", "reservedMemory[0].limits"],
        ),
        (
            "reservedMemory = [{ numanode = 0, limits = {} }]",
            [
                "reservedMemory[0].numanode",
                "reservedMemory[0].numaNode",
                "reservedMemory[0].limits",
            ],
        ),
        (
            "reservedMemory = [{ numaNode = -1, limits = { memory = '0', cpu = '1' } }]",
            [
                "reservedMemory[0].numaNode",
                "reservedMemory[0].limits.memory",
                "reservedMemory[0].limits.cpu",
            ],
        ),
        (
            """reservedMemory = [
                { numaNode = 0, limits = { memory = '1Gi', 'hugepages-2Mi' = '2Mi' } },
                { numaNode = 1, limits = { memory = '1Gi' } },
                { numaNode = 0, limits = { 'hugepages-2048Ki' = '2Mi', 'hugepages-1Gi' = '1Gi' } },
            ]""",
            ["reservedMemory[2].limits.hugepages-2Mi"],
        ),
        (
            "reservedMemory = [{ numaNode = '0', limits = { memory = '1Gi' } }]",
            ["reservedMemory[0].numaNode"],
        ),
        (
            "reservedMemory = [{ numaNode = true, limits = { memory = '1Gi' } }]",
            ["reservedMemory[0].numaNode"],
        ),
    ],
)
def test_wrong_reservations(write: Write, content: str, expected: list[str]) -> None:
    assert paths_of(write(content)) == expected


def test_a_near_miss_is_recognised_and_others_get_the_list(write: Write) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings([write("reserved_memory = []\nlog-levle = 'info'\nxyzzy = 1")])
    expected = {one.path: one.expected for one in raised.value.problems}
    assert expected["reserved_memory"] == "reservedMemory, perhaps"
    assert expected["log-levle"] == "logLevel, perhaps"
    assert expected["xyzzy"].startswith("one of adminSocket, agentGroup, agentSocket, annotationErrors, ")


def test_no_reservation_at_all_can_be_asked_for(write: Write) -> None:
    assert load_settings([write("reservedMemory = []")]).reserved_memory == {}


def test_tiered_reservation_needs_memory_qos(write: Write) -> None:
    path = write("memoryReservationPolicy = 'TieredReservation'")
    assert problems_of(path) == ["memoryReservationPolicy: 'TieredReservation'"]
    settings = load_settings([path], {"featureGates": ["MemoryQoS=true"]})
    assert settings.memory_qos


def test_no_memory_high_is_none_or_null(write: Write) -> None:
    assert load_settings([write("memoryThrottlingFactor = 'none'")]).memory_throttling_factor is None
    assert load_settings([write("memoryThrottlingFactor:", "a.yaml")]).memory_throttling_factor is None
    assert load_settings([write("memoryThrottlingFactor = 1")]).memory_throttling_factor == 1.0


def test_an_eviction_table_without_memory_keeps_the_default(write: Write) -> None:
    settings = load_settings([write("evictionHard = { 'nodefs.available' = '10%' }")])
    assert eviction_bytes(settings, GIB) == 100 * MIB
    assert eviction_bytes(replace(settings, engine="kubelet"), GIB) == 0


# --- kubelet's own file ---

KUBELET = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}}
clusterDNS: [10.96.0.10]
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
memoryManagerPolicy: Static
topologyManagerScope: pod
topologyManagerPolicy: restricted
reservedMemory:
- numaNode: 0
  limits: {memory: 1100Mi}
kubeReserved: {memory: 1Gi, cpu: 500m}
evictionHard: {memory.available: 100Mi, nodefs.available: 10%, pid.available: 5%}
featureGates: {MemoryQoS: true, NodeSwap: true}
memoryThrottlingFactor: 0.9
reservedSystemCPUs: 0-1
singleProcessOOMKill: false
logging: {format: json}
"""


KUBELETS_DEFAULTS = Settings(
    engine="kubelet",
    topology=TopologyPolicy.NONE,
    cpu_manager="none",
    memory_manager=MemoryManagerPolicy.NONE,
    eviction_hard={name: read_threshold(name, text) for name, text in DEFAULT_EVICTION_HARD.items()},
    memory_throttling_factor=None,
    of_kubelets_file=True,
)
"""What kubelet makes of an empty file of its own."""


def test_kubelets_own_file_can_be_one_of_the_files(write: Write) -> None:
    ours = write('logLevel = "debug"\nreservedSystemCPUs = "4"')
    settings = load_settings([write(KUBELET, "config.yaml"), ours])
    assert settings.topology is TopologyPolicy.RESTRICTED
    assert settings.reserved_memory == {0: {"memory": 1100 * MIB}}
    assert settings.kube_reserved == {"memory": GIB, "cpu": 500_000_000}
    assert settings.engine == "exact"
    assert settings.topology_scope is TopologyScope.POD
    assert settings.memory_qos
    assert settings.reserved_cpus == CpuSet([4])
    assert settings.log_level == "debug"
    file = settings.sources[0]
    assert settings.kubelet_managers == {PinningManager.CPU: file, PinningManager.MEMORY: file}
    *of_the_file, of_the_version = settings.remarks
    assert [file in remark for remark in of_the_file] == [True, True]
    assert settings.unknown_kubelet == (of_the_version,)
    assert settings.cpu_options == {"full-pcpus-only": "true"}
    assert settings.notices == ()


def test_with_kubelets_engine_its_managers_are_ours(write: Write) -> None:
    path = write(
        KUBELET.replace("cpuManagerPolicy: static", "cpuManagerPolicy: static\nport: 10250"), "c.yaml"
    )
    settings = load_settings([path], {"engine": ["kubelet"]})
    assert settings.engine == "kubelet"
    assert settings.topology_scope is TopologyScope.POD
    assert settings.memory_manager is MemoryManagerPolicy.STATIC
    assert settings.cpu_options == {"full-pcpus-only": "true"}
    assert settings.notices == ()
    assert list(settings.kubelet_managers) == [PinningManager.CPU, PinningManager.MEMORY]
    without = write(THEIRS + "memoryManagerPolicy: None\ncpuManagerPolicy: none", "d.yaml")
    bare = load_settings([without, write('engine = "kubelet"')])
    assert (bare.memory_manager, bare.cpu_manager) == (MemoryManagerPolicy.NONE, "none")


def test_what_kubelets_file_leaves_empty_is_not_set(write: Write) -> None:
    empty = "".join(f"{key.name}:\n" for key in KEYS.values() if key.of_kubelet or key.of_managers)
    texts = "topologyManagerPolicy: ''\nreservedSystemCPUs: ''\ncpuManagerPolicy: ''"
    for content in (empty, texts):
        settings = load_settings([write(f"{THEIRS}{content}", "k.yaml")], {"engine": ["kubelet"]})
        assert replace(settings, sources=(), notices=()) == KUBELETS_DEFAULTS


@pytest.mark.parametrize(
    ("version", "gate", "factor"), [("1.36", False, 0.9), ("v1.35.2", False, 0.9), ("1.37", True, None)]
)
def test_what_kubelets_file_leaves_out_depends_on_its_version(
    write: Write, version: str, gate: bool, factor: float | None
) -> None:
    file = write(THEIRS, "k.yaml")
    settings = load_settings([file], {"kubeletVersion": [version]})
    assert (settings.memory_qos, settings.memory_throttling_factor) == (gate, factor)
    # Bayplan's own file means the same whichever kubelet there is.
    own = load_settings([write("engine = 'exact'\n")], {"kubeletVersion": [version]})
    assert (own.memory_qos, own.memory_throttling_factor) == (False, 0.9)


TIERED, FACTOR = "memoryReservationPolicy", "memoryThrottlingFactor"


@pytest.mark.parametrize(
    ("text", "refused_by"),
    [
        # What kubelet 1.36.3 and 1.37.2 said of each (AllAlpha alone lacks beta gates in 1.37.2); before 1.36
        # there is no memoryReservationPolicy, before 1.37 nothing holds the factor against the gate.
        ("memoryReservationPolicy: TieredReservation", {"1.36": TIERED}),
        ("memoryReservationPolicy: TieredReservation\nfeatureGates: {AllAlpha: true, AllBeta: true}", {}),
        (f"{TIERED}: TieredReservation\nfeatureGates: {{AllAlpha: true, AllBeta: true, MemoryQoS: false}}",
         {"1.36": TIERED, "1.37": TIERED}),
        ("memoryReservationPolicy: Nonsense", {"1.36": TIERED, "1.37": TIERED}),
        ("memoryThrottlingFactor: 0.8", {}),
        ("memoryThrottlingFactor: 0.8\nfeatureGates: {MemoryQoS: false}", {"1.37": FACTOR}),
        ("memoryThrottlingFactor: 0.8\nfeatureGates: {MemoryQoS: null}", {"1.37": FACTOR}),
        ("memoryThrottlingFactor: 0.8\nfeatureGates: {AllBeta: false}", {"1.37": FACTOR}),
        ("memoryThrottlingFactor: 0.8\nfeatureGates: {AllBeta: false, MemoryQoS: true}", {}),
        ("memoryThrottlingFactor: 0.9\nfeatureGates: {MemoryQoS: false}", {}),
        ("memoryThrottlingFactor: 1\nfeatureGates: {MemoryQoS: false}", {"1.37": FACTOR}),
    ],
)  # fmt: skip
def test_what_takes_memory_qos_in_kubelets_file_is_refused_as_that_kubelet_does(
    write: Write, text: str, refused_by: dict[str, str]
) -> None:
    file = write(f"{THEIRS}{text}\n", "k.yaml")
    for version in ("1.34", "1.35", "1.36", "1.37"):
        flags = {"kubeletVersion": [version]}
        if version in refused_by:
            assert paths_of(file, flags) == [refused_by[version]]
        else:
            load_settings([file], flags)


def test_a_key_that_kubelet_of_that_version_does_not_know_has_no_effect(write: Write) -> None:
    file = write(THEIRS + "memoryReservationPolicy: TieredReservation\n", "k.yaml")
    settings = load_settings([file], {"kubeletVersion": ["1.35"]})
    assert settings.memory_reservation is MemoryReservationPolicy.NONE
    assert [one for one in settings.notices if "memoryReservationPolicy" in one] != []


def test_our_own_file_may_switch_off_what_kubelet_does_itself(write: Write) -> None:
    theirs = write(THEIRS + "memoryReservationPolicy: TieredReservation\n", "k.yaml")
    ours = write("featureGates = { MemoryQoS = false }\n")
    assert not load_settings([theirs, ours], {"kubeletVersion": ["1.37"]}).memory_qos
    tiered = write("featureGates = { MemoryQoS = false }\nmemoryReservationPolicy = 'TieredReservation'\n")
    assert paths_of(tiered) == ["memoryReservationPolicy"]


@pytest.mark.parametrize(
    ("version", "said", "memory_qos", "alpha"),
    [
        ("1.34", "AllAlpha: true, AllBeta: false", True, True),
        ("1.36", "AllAlpha: false, AllBeta: false, MemoryQoS: true", True, False),
        ("1.37", "AllAlpha: false, AllBeta: false", False, False),
    ],
)
def test_gates_of_a_stage_stand_for_those_that_are_not_set(
    write: Write, version: str, said: str, memory_qos: bool, alpha: bool
) -> None:
    file = write(f"{THEIRS}featureGates: {{{said}}}\n", "k.yaml")
    gates = load_settings([file], {"kubeletVersion": [version]}).feature_gates
    assert gates == {
        "MemoryQoS": memory_qos,
        "CPUManagerPolicyAlphaOptions": alpha,
        "TopologyManagerPolicyAlphaOptions": alpha,
        "CPUManagerPolicyBetaOptions": False,
        "TopologyManagerPolicyBetaOptions": False,
    }


def test_a_version_that_was_found_counts_as_if_it_were_configured(write: Write) -> None:
    asked: list[str] = []

    def find() -> KubeletVersion:
        asked.append("kubelet")
        return KubeletVersion("v1.36.3", "/usr/bin/kubelet --version")

    contents = read_contents([write(THEIRS, "k.yaml")])
    found = settings_of(contents, find_kubelet=find)
    said = settings_of(contents, {"kubeletVersion": ["1.36"]})
    assert found.kubelet_known_by == "/usr/bin/kubelet --version"
    assert found.unknown_kubelet == ()
    assert replace(found, kubelet_known_by=said.kubelet_known_by) == said
    # What is configured is not looked for.
    settings_of(contents, {"kubeletVersion": ["1.35"]}, find_kubelet=find)
    assert asked == ["kubelet"]


@pytest.mark.parametrize("text", [THEIRS, "engine: kubelet"])
def test_that_a_version_is_assumed_is_said_where_something_depends_on_it(write: Write, text: str) -> None:
    settings = load_settings([write(f"{text}\n", "k.yaml")])
    assert settings.kubelet_rules is NEWEST
    assert len(settings.unknown_kubelet) == 1
    assert settings.remarks[-1:] == settings.unknown_kubelet
    # Nothing here speaks of a kubelet: there is none, or it is found by its process.
    assert load_settings([write("memoryPressure: evict\n", "k.yaml")]).unknown_kubelet == ()


@pytest.mark.parametrize("wrong", ["1", "37", "v2.0", "latest", "1.x"])
def test_a_kubelet_version_that_is_none(write: Write, wrong: str) -> None:
    assert paths_of(write(f"kubeletVersion = '{wrong}'\n")) == ["kubeletVersion"]


def test_a_kubelet_version_may_be_a_number_with_both_digits(write: Write) -> None:
    assert load_settings([write("kubeletVersion = 1.36\n")]).kubelet_minor == 36
    assert paths_of(write("kubeletVersion = 1.40\n")) == ["kubeletVersion"]


def test_kubelets_file_may_be_json_or_a_drop_in(write: Write) -> None:
    head = '\t"apiVersion": "kubelet.config.k8s.io/v1beta1",\n\t"kind": "KubeletConfiguration",\n'
    text = f'{{\n{head}\t"kubeReserved": {{"memory": "1Gi"}}\n}}'
    assert load_settings([write(text, "config.json")]).kube_reserved == {"memory": GIB}
    assert load_settings([write(text.replace("\t", " "), "10-kubelet.conf")]).kube_reserved == {"memory": GIB}
    for wrong, found in (('{"engine": 1, "engine": 2}', "the key engine a second time"), ("{", "Expecting")):
        assert problems_of(write(wrong, "config.json"))[0].startswith(f"the file: {found}")
    assert problems_of(write("kind: x", "config.txt")) == ["the file name: 'config.txt'"]


def test_a_grace_period_that_cannot_be_read_is_not_missing(write: Write) -> None:
    soft = "engine = 'kubelet'\nevictionSoft = { 'pid.available' = 100 }\n"
    assert paths_of(write(soft)) == ["evictionSoft"]
    wrong = soft + "evictionSoftGracePeriod = { 'pid.available' = '1m30' }"
    assert problems_of(write(wrong)) == ["evictionSoftGracePeriod.\"pid.available\": '1m30'"]


def test_wrong_options_are_reported_beside_unknown_ones(write: Write) -> None:
    path = write(
        "engine = 'kubelet'\ncpuManagerPolicyOptions = { full-pcpus = 'true', strict-cpu-reservation = 'x' }"
    )
    assert paths_of(path) == ["cpuManagerPolicyOptions.full-pcpus", "cpuManagerPolicyOptions"]


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        ("memoryManagerPolicy = 'BestEffort'", ["memoryManagerPolicy: 'BestEffort'"]),
        (
            "topologyManagerPolicyOptions = { prefer-closest-numa-nodes = true }",
            ["topologyManagerPolicyOptions: a table"],
        ),
        ("engine = 'widest'", ["engine: 'widest'"]),
    ],
)
def test_what_needs_kubelets_engine(write: Write, content: str, problems: list[str]) -> None:
    assert problems_of(write(content)) == problems


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("cpuManagerPolicyOptions = { full-cores = true }", ["an unknown key"]),
        ("cpuManagerPolicyOptions = { full-pcpus-only = 'yes' }", ["full-pcpus-only"]),
        (
            "cpuManagerPolicyOptions = { align-by-socket = true }",
            ["align-by-socket"],
        ),
        (
            (
                "featureGates = { CPUManagerPolicyAlphaOptions = true }\n"
                "cpuManagerPolicyOptions = { full-pcpus-only = true, distribute-cpus-across-cores = true }"
            ),
            ["distribute-cpus-across-cores,full-pcpus-only"],
        ),
        (
            "cpuManagerPolicy = 'none'\ncpuManagerPolicyOptions = { full-pcpus-only = true }",
            ["full-pcpus-only"],
        ),
        (
            "topologyManagerPolicyOptions = { max-allowable-numa-nodes = 4, prefer-closest-numa-nodes = 2 }",
            ["max-allowable-numa-nodes,prefer-closest-numa-nodes"] * 2,
        ),
    ],
)
def test_options_that_kubelet_would_not_take(write: Write, content: str, found: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings([write(f"engine = 'kubelet'\n{content}")])
    assert [one.found for one in raised.value.problems] == found


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("full-pcpus-only = 'yes'", ["full-pcpus-only"]),
        (
            "full-pcpus-only = true, distribute-cpus-across-cores = true",
            ["distribute-cpus-across-cores,full-pcpus-only"],
        ),
        (
            "distribute-cpus-across-numa = true, prefer-align-cpus-by-uncorecache = true",
            ["distribute-cpus-across-numa,prefer-align-cpus-by-uncorecache"],
        ),
    ],
)
def test_cpu_options_that_kubelet_would_not_take_are_none_of_the_engine_exact_either(
    write: Write, options: str, found: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings([write(f"cpuManagerPolicyOptions = {{ {options} }}")])
    assert [one.found for one in raised.value.problems] == found


def test_cpu_options_of_the_engine_exact_need_no_gate(write: Write) -> None:
    options = "cpuManagerPolicyOptions = { align-by-socket = true, distribute-cpus-across-cores = 'false' }"
    assert load_settings([write(options)]).cpu_options["align-by-socket"] == "true"


def test_wrong_values_in_kubelets_own_file_are_named(write: Write) -> None:
    path = write(KUBELET.replace("restricted", "strict").replace("1100Mi", "lots"), "config.yaml")
    assert problems_of(path) == [
        "topologyManagerPolicy: 'strict'",
        "reservedMemory[0].limits.memory: 'lots'",
    ]


def test_kubelets_own_managers_are_not_ours(write: Write) -> None:
    path = write(THEIRS + "memoryManagerPolicy: None\ncpuManagerPolicy: none\n", "c.yaml")
    settings = load_settings([path])
    assert not settings.kubelet_managers
    assert (settings.cpu_manager, settings.memory_manager) == ("static", MemoryManagerPolicy.STATIC)


def test_the_word_off_is_false_in_yaml(write: Write) -> None:
    for text in ("memoryPressure: off\n", "memoryPressure: 'off'\n"):
        assert load_settings([write(text, "bayplan.yaml")]).memory_pressure is MemoryPressure.OFF
    with pytest.raises(ConfigError, match="memoryPressure: found true, expected off or observe or relieve"):
        load_settings([write("memoryPressure: on\n", "bayplan.yaml")])
