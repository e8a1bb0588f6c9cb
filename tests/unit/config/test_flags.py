"""Flags come to the same as files, and the documentation, the flags and the keys never drift apart."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from bayplan import __version__
from bayplan.config.keys import GROUPS, KEYS, build_parser, given_flags
from bayplan.config.load import load_settings
from bayplan.config.settings import Settings
from bayplan.errors import ConfigError
from bayplan.kubelet.eviction_manager import ThresholdValue
from bayplan.model.kubelet_version import NEWEST
from bayplan.model.policy import CpuPool, CpuRule, PlacementFiles, PoolBounds, TopologyPolicy
from bayplan.sets import CpuSet

GIB, MIB = 1 << 30, 1 << 20
DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"


def settings_of(*arguments: str) -> Settings:
    parsed = build_parser().parse_args(arguments)
    return load_settings(parsed.config, given_flags(parsed), default_directory=Path("/nonexistent"))


def test_no_flags_are_no_settings() -> None:
    assert given_flags(build_parser().parse_args([])) == {}
    assert settings_of() == Settings()


def test_kubelets_spelling_of_reserved_memory() -> None:
    together = settings_of("--reserved-memory", "0:memory=3Gi,hugepages-2Mi=64Mi;1:memory=2148Mi")
    apart = settings_of(
        "--reserved-memory=0:memory=3Gi,hugepages-2Mi=64Mi", "--reserved-memory=1:memory=2148Mi"
    )
    assert together.reserved_memory == {
        0: {"memory": 3 * GIB, "hugepages-2Mi": 64 * MIB},
        1: {"memory": 2148 * MIB},
    }
    assert apart == together
    assert settings_of("--reserved-memory", "").reserved_memory == {}
    forgotten = settings_of(
        "--reserved-memory=0:memory=1Gi", "--reserved-memory=", "--reserved-memory=1:memory=2Gi"
    )
    assert forgotten.reserved_memory == {1: {"memory": 2 * GIB}}


def test_every_flag() -> None:
    settings = settings_of(
        "--engine=kubelet",
        "--kubelet-version=1.36",
        "--placement-strategy=spread",
        "--keep-whole=off",
        "--topology-manager-policy=restricted",
        "--topology-manager-scope=pod",
        "--topology-manager-policy-options=prefer-closest-numa-nodes=true,max-allowable-numa-nodes=9",
        "--memory-manager-policy=BestEffort",
        "--cpu-manager-policy=static",
        "--shared-cpus-minimum=3",
        "--cpu-manager-policy-options=full-pcpus-only=true,distribute-cpus-across-numa=true",
        "--cpu-rules=namespaces=pay,namespaces=ment,labels=app:db,cpus=exclusive=2;containers=log,cpus=shared",
        "--cpu-pools=db=2-8:performance,logs=3",
        "--reserved-memory=0:memory=1Gi",
        "--reserved-cpus=0-1",
        "--kube-reserved=cpu=200m,memory=500Mi",
        "--system-reserved=memory=1Gi",
        "--eviction-hard=memory.available<200Mi,nodefs.available<10%",
        "--eviction-soft=memory.available<1Gi",
        "--eviction-soft-grace-period=memory.available=1m30s",
        "--eviction-minimum-reclaim=memory.available=5%,nodefs.available=0",
        "--eviction-pressure-transition-period=1m",
        "--merge-default-eviction-settings",
        "--measured-reservation=false",
        "--device-memory=1-2=0009:01:00.0,9=none",
        "--feature-gates=MemoryQoS=true",
        "--memory-throttling-factor=0.5",
        "--memory-reservation-policy=TieredReservation",
        "--single-process-oom-kill",
        "--placement-files=all",
        "--placement-directory=/run/f/placements",
        "--cdi-directory=/run/f/cdi",
        "--set-oom-score-adj=false",
        "--default-memory-limit=Burstable=4Gi,BestEffort=1Gi",
        "--annotation-errors=refuse",
        "--forbidden-annotations=cpu-partition,irqs",
        "--when-down=refuse",
        "--when-down-except=kube-system,storage",
        "--requests-outside-kubelet=nothing",
        "--nri-socket=/run/nri.sock",
        "--plugin-name=bay",
        "--plugin-index=11",
        "--request-deadline=1.5s",
        "--oci-socket=none",
        "--oci-deadline=2s",
        "--crio-socket=/run/crio.sock",
        "--containerd-socket=/run/containerd.sock",
        "--oci-undecided=allow",
        "--return-deadline=5m",
        "--return-max-move=8Gi",
        "--memory-pressure=off",
        "--page-move-rate=2Gi",
        "--defragment=off",
        "--relocations-per-hour=unlimited",
        "--hugepage-pools=0-1:hugepages-2Mi=64Mi-8Gi,hugepages-1Gi=4Gi;2:hugepages-2Mi=0-1Gi",
        "--percpu-pagelist-high-fraction=64",
        "--shadow",
        "--state-dir=/var/bay",
        "--admin-socket=/run/bay.sock",
        "--agent-socket=none",
        "--agent-group=adm",
        "--log-level=warning",
        "--log-format=text",
        "--record=/var/lib/bayplan/recording",
    )
    assert settings.topology is TopologyPolicy.RESTRICTED
    assert settings.reserved_cpus == CpuSet([0, 1])
    assert settings.shared_cpus_minimum == 3
    assert settings.cpu_rules == (
        CpuRule(frozenset({"pay", "ment"}), {"app": "db"}, cpus="exclusive=2"),
        CpuRule(containers=frozenset({"log"}), cpus="shared"),
    )
    assert settings.cpu_pools == {"db": CpuPool(2, 8, "performance"), "logs": CpuPool(1, 3)}
    both = {2 * MIB: PoolBounds(64 * MIB, 8 * GIB), GIB: PoolBounds(0, 4 * GIB)}
    assert settings.hugepage_pools == {0: both, 1: both, 2: {2 * MIB: PoolBounds(0, GIB)}}
    assert settings.kube_reserved == {"memory": 500 * MIB, "cpu": 200_000_000}
    assert settings.cpu_options == {"full-pcpus-only": "true", "distribute-cpus-across-numa": "true"}
    assert settings.eviction_hard["memory.available"] == ThresholdValue(200 * MIB)
    assert settings.eviction_grace_ns == {"memory.available": 90_000_000_000}
    assert settings.eviction_transition_ns == 60_000_000_000
    assert not settings.measured_reservation
    assert settings.record_directory == Path("/var/bay/shadow")
    assert settings.device_memory == {1: "0009:01:00.0", 2: "0009:01:00.0", 9: ""}
    assert settings.memory_throttling_factor == 0.5
    assert settings.single_process_oom_kill
    assert settings.placement_files is PlacementFiles.ALL
    assert settings.placement_directory == Path("/run/f/placements")
    assert settings.cdi_directory == Path("/run/f/cdi")
    assert not settings.set_oom_score_adj
    assert settings.default_memory_limit_bytes == {"Burstable": 4 * GIB, "BestEffort": GIB}
    assert settings.request_deadline_ms == 1500
    assert settings.oci_socket is None
    defaults = Settings()
    own = {key.field for key in KEYS.values()} - {"cpu_manager"}
    unchanged = [name for name in own if getattr(settings, name) == getattr(defaults, name)]
    assert unchanged == []


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("--reserved-memory=memory=1Gi", "--reserved-memory: found 'memory=1Gi'"),
        ("--reserved-memory=0:memory", "--reserved-memory: found 'memory'"),
        ("--reserved-memory=0:", "--reserved-memory[0].limits: "),
        ("--reserved-memory=x:memory=1Gi", "--reserved-memory[0].numaNode: found 'x'"),
        ("--reserved-memory=-1:memory=1Gi", "--reserved-memory[0].numaNode: found '-1'"),
        ("--reserved-memory=0:memory=0", "--reserved-memory[0].limits.memory: found 0"),
        ("--reserved-memory=0:memory=1Gi,memory=2Gi", "--reserved-memory"),
        ("--reserved-memory=0:memory=1Gi;0:memory=2Gi", "--reserved-memory[1].limits.memory: "),
        ("--reserved-memory=0:memory=lots", "--reserved-memory[0].limits.memory: found 'lots'"),
        ("--reserved-memory=0:ram=1Gi", "--reserved-memory[0].limits.ram: "),
        ("--feature-gates=MemoryQos=true", "--feature-gates.MemoryQos: "),
        ("--feature-gates=MemoryQoS=yes", "--feature-gates.MemoryQoS: found 'yes'"),
        ("--feature-gates=MemoryQoS", "--feature-gates: found 'MemoryQoS'"),
        ("--eviction-hard=memory.available=5%", "--eviction-hard: found 'memory.available=5%'"),
        ("--memory-throttling-factor=2", "--memory-throttling-factor: found 2.0 (float)"),
        ("--memory-throttling-factor=high", "--memory-throttling-factor: found 'high'"),
        ("--placement-files=some", "--placement-files: found 'some'"),
        ("--placement-directory=here", "--placement-directory: found 'here'"),
        ("--set-oom-score-adj=maybe", "--set-oom-score-adj: found 'maybe'"),
    ],
)
def test_a_wrong_flag_is_named(argument: str, named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settings_of(argument)
    assert str(raised.value).startswith(f"command line: {named}")


def test_abbreviations_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        build_parser().parse_args(["--reserved-mem", "0:memory=1Gi"])
    assert raised.value.code == 2


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--version"])
    assert capsys.readouterr().out.startswith(f"baypland {__version__} (python 3.")


# --- the table, the flags, the settings and the documentation ---


def test_every_field_of_the_settings_has_exactly_one_key() -> None:
    fields = set(Settings.__struct_fields__) - {
        "sources",
        "notices",
        "kubelet_managers",
        "of_kubelets_file",
        "kubelet_known_by",
    }
    assert sorted(key.field for key in KEYS.values()) == sorted(fields)
    assert sum(len(keys) for keys in GROUPS.values()) == len(KEYS)


def test_help_names_every_flag_and_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # lines are broken inside of words, on a narrow terminal more often
    text = " ".join(build_parser().format_help().split())
    for key in KEYS.values():
        assert f"--{key.flag} " in text
        assert f"(default: {key.default})" in text.replace("- ", "-")


def documented() -> dict[str, dict[str, str]]:
    """The sections of the document: key -> what its list says."""
    sections = re.split(r"^### `(\w+)`\n", DOCUMENT.read_text(), flags=re.MULTILINE)[1:]
    return {
        name: dict(re.findall(r"^- (\w+): (.*)$", body, re.MULTILINE))
        for name, body in zip(sections[::2], sections[1::2], strict=True)
    }


def test_every_key_is_documented_with_its_flag_type_default_and_an_example() -> None:
    sections = documented()
    assert list(sections) == list(KEYS)
    for name, facts in sections.items():
        assert list(facts) == ["Flag", "Type", "Default", "Example"], name
        assert facts["Flag"] == f"`--{KEYS[name].flag}`"
        assert facts["Default"] == f"`{KEYS[name].default}`"


@pytest.mark.parametrize("name", list(KEYS))
def test_every_example_of_the_documentation_works(name: str, tmp_path: Path) -> None:
    example = documented()[name]["Example"].strip("`")
    assert list(tomllib.loads(example)) == [name]
    path = tmp_path / "example.toml"
    engine = 'engine = "kubelet"\n' if KEYS[name].of_managers else ""
    path.write_text(engine + example)
    load_settings([path])


@pytest.mark.parametrize("name", list(KEYS))
def test_every_documented_default_is_the_default(name: str, tmp_path: Path) -> None:
    """Where the documented default is a value that can be written, writing it changes nothing."""
    described = {
        "reservedMemory",
        "reservedSystemCPUs",
        "kubeReserved",
        "systemReserved",
        "defaultMemoryLimit",
        "deviceMemory",
        "topologyManagerPolicyOptions",
        "cpuManagerPolicyOptions",
        "evictionSoft",
        "evictionSoftGracePeriod",
        "evictionMinimumReclaim",
        "kubeletVersion",
    }
    spelled = {
        "evictionHard": '{ "memory.available" = "100Mi" }',
        "cpuPools": "{}",
        "hugepagePools": "{}",
        "relocationsPerHour": "6",
        "cpuRules": "[]",
        "featureGates": "{}",
        "memoryThrottlingFactor": "0.9",
        "singleProcessOOMKill": "false",
        "setOomScoreAdj": "true",
        "measuredReservation": "true",
        "mergeDefaultEvictionSettings": "false",
        "shadow": "false",
    }
    if name in described:
        assert getattr(Settings(), KEYS[name].field) in (None, {}, CpuSet(), NEWEST.minor)
        return
    path = tmp_path / "default.toml"
    path.write_text(f"{name} = {spelled.get(name, repr(KEYS[name].default))}")
    assert msgspec.structs.replace(load_settings([path]), sources=(), notices=()) == Settings()
