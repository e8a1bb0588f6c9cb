"""kubelet's configuration in what others wrap around it, other documents, and what is left out of either."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from bayplan.config.load import load_settings
from bayplan.config.settings import Settings
from bayplan.errors import ConfigError
from bayplan.kubelet.manager_options import MemoryManagerPolicy
from bayplan.model.policy import TopologyPolicy, TopologyScope
from bayplan.sets import CpuSet

Write = Callable[..., Path]
API, KIND = "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"
FILLED: dict[str, Any] = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0-1",
    "topologyManagerPolicy": "restricted",
    "topologyManagerScope": "pod",
    "clusterDNS": ["10.96.0.10"],
    "shutdownGracePeriod": "0s",
}
KUBELETS = {"apiVersion": API, "kind": KIND, **FILLED}
OPENSHIFT = "machineconfiguration.openshift.io/v1"
OTHER = {"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "InitConfiguration"}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def writer(*documents: object, name: str = "k.yaml") -> Path:
        path = tmp_path / name
        path.write_text("---\n".join(yaml.safe_dump(document) for document in documents))
        return path

    return writer


def problems_of(path: Path) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as raised:
        load_settings([path])
    return [(one.path, one.found) for one in raised.value.problems]


def of_kubelet(path: Path, engine: str = "kubelet", **flags: str) -> Settings:
    texts = {key: [text] for key, text in flags.items()}
    return load_settings([path], {"engine": [engine], **texts})


def config_map(**texts: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kubelet-config"}, "data": texts}


def openshift(**spec: object) -> dict[str, Any]:
    return {"apiVersion": OPENSHIFT, "kind": "KubeletConfig", "metadata": {"name": "a"}, "spec": spec}


@pytest.mark.parametrize(
    ("documents", "where", "remarks"),
    [
        ([KUBELETS], "", 0),
        ([{"kubeletconfig": FILLED}], ": kubeletconfig", 0),
        ([openshift(kubeletConfig=FILLED, logLevel=5)], ": spec.kubeletConfig", 1),
        ([config_map(kubelet=yaml.safe_dump(KUBELETS), other="x")], ": data.kubelet", 0),
        ([config_map(kubelet=json.dumps(KUBELETS, indent=1))], ": data.kubelet", 0),
        ([OTHER, KUBELETS, {"kind": "KubeProxyConfiguration"}], ": document 2", 1),
        ([KUBELETS, OTHER], ": document 1", 1),
        ([{"kind": "List", "items": [config_map(a="b"), openshift(kubeletConfig=FILLED)]}],
         ": items[1]: spec.kubeletConfig", 1),
        ([{"kind": "KubeletConfigList", "items": [openshift(kubeletConfig=FILLED)]}],
         ": items[0]: spec.kubeletConfig", 1),
    ],
)  # fmt: skip
def test_kubelets_configuration_is_found_in_what_is_around_it(
    write: Write, documents: list[object], where: str, remarks: int
) -> None:
    path = write(*documents)
    plain = of_kubelet(write(KUBELETS, name="plain.yaml"))
    settings = of_kubelet(path)
    assert settings.sources == (f"{path}{where}",)
    assert len(settings.notices) == remarks
    same = {"sources": (), "notices": (), "kubelet_managers": {}}
    assert replace(settings, **same) == replace(plain, **same)
    assert (settings.topology, settings.topology_scope) == (TopologyPolicy.RESTRICTED, TopologyScope.POD)
    assert settings.reserved_cpus == CpuSet([0, 1])


def test_kubelets_file_may_have_any_name(write: Write) -> None:
    assert of_kubelet(write(KUBELETS, name="config")).topology is TopologyPolicy.RESTRICTED
    assert of_kubelet(write({"kubeletconfig": FILLED}, name="configz")).topology is TopologyPolicy.RESTRICTED
    for content in ({"engine": "kubelet"}, "a: {"):
        assert problems_of(write(content, name="config.ini")) == [("the file name", "'config.ini'")]


@pytest.mark.parametrize("name", ["k.yaml", "k.json", "k.conf"])
def test_a_key_twice_is_the_last_one_to_kubelet_and_remarked(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(
        f'{{"apiVersion": "{API}", "kind": "{KIND}", '
        '"cpuManagerPolicy": "none", "cpuManagerPolicy": "static", '
        '"kubeReserved": {"cpu": "1", "cpu": "2"}}'
    )
    settings = of_kubelet(path)
    assert (settings.cpu_manager, settings.kube_reserved) == ("static", {"cpu": 2 * 10**9})
    (notice,) = settings.notices
    assert notice.endswith(("cpuManagerPolicy, cpu", "cpu, cpuManagerPolicy"))
    path.write_text('{"logLevel": "info", "logLevel": "debug"}')
    ((where, found),) = problems_of(path)
    assert (where, found[:29]) == ("the file", "the key logLevel a second tim")


def test_a_wrong_value_is_named_where_it_is(write: Write) -> None:
    path = write(config_map(kubelet=yaml.safe_dump({**KUBELETS, "topologyManagerPolicy": "strict"})))
    with pytest.raises(ConfigError) as raised:
        of_kubelet(path)
    assert raised.value.source == f"{path}: data.kubelet"
    assert problems_of(write(config_map(kubelet=f"kind: {KIND}\n a: [")))[0][0] == "data.kubelet"
    assert problems_of(write(openshift(kubeletConfig="x"))) == [("spec.kubeletConfig", "'x'")]


@pytest.mark.parametrize(
    ("documents", "found"),
    [
        ([{"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": {"kubelet": {}}}],
         "NodeConfig (node.eks.aws/v1alpha1)"),
        ([config_map(other="x")], "ConfigMap (v1)"),
        ([{"apiVersion": "v1alpha1", "kind": "KubeletConfig"}], "KubeletConfig (v1alpha1)"),
        ([{"version": "v1alpha1", "machine": {"kubelet": {"extraConfig": FILLED}}, "cluster": {}}],
         "Talos' machine configuration"),
        ([{"kubelet": {"cpuManagerPolicy": "static"}, "dns": {}}], "MicroShift's configuration"),
        ([{"kubelet-arg": ["cpu-manager-policy=static"]}], "the configuration of k3s or RKE2"),
        ([{"kubeletConfig": {"cpuManagerPolicy": "static"}}], "GKE's node system configuration"),
        ([{"version": "0.2.0", "extraKubeletArgs": {"--max-pods": "9"}}], "MicroK8s' launch configuration"),
        ([OTHER, {"kind": "ClusterConfiguration"}],
         "2 documents (InitConfiguration (kubeadm.k8s.io/v1beta4), ClusterConfiguration)"),
        ([KUBELETS, KUBELETS], f"2 documents of kind {KIND}: document 1, document 2"),
    ],
)  # fmt: skip
def test_another_document_is_one_problem_and_named(write: Write, documents: list[object], found: str) -> None:
    assert problems_of(write(*documents)) == [("the file", found)]


def test_settings_of_bottlerocket_are_known_in_toml(tmp_path: Path) -> None:
    path = tmp_path / "user-data.toml"
    path.write_text('[settings.kubernetes]\ncpu-manager-policy = "static"\n')
    assert problems_of(path) == [("the file", "Bottlerocket's settings")]


@pytest.mark.parametrize(
    ("documents", "file"),
    [
        (
            [{"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig"}],
            r"/etc/kubernetes/kubelet/config\.json",
        ),
        ([{"apiVersion": "v1alpha1", "kind": "KubeletConfig"}], r"/etc/kubernetes/kubelet\.yaml"),
        (
            [{"apiVersion": "k0s.k0sproject.io/v1beta1", "kind": "ClusterConfig"}],
            r"/run/k0s/kubelet/config\.yaml",
        ),
        (
            [{"kind": "a"}, {"version": "v1alpha1", "machine": {"type": "worker"}}],
            r"/etc/kubernetes/kubelet\.yaml",
        ),
    ],
)
def test_where_kubelets_file_is_on_the_node_is_said(write: Write, documents: list[object], file: str) -> None:
    with pytest.raises(ConfigError, match=file):
        load_settings([write(*documents)])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kubelet", "KUBELET_FLAGS=--anonymous-auth=false --eviction-hard=memory.available<750Mi\n"),
        ("kubelet-args", "--cert-dir=${SNAP_DATA}/certs\n--kube-reserved=memory=1Gi\n"),
        ("kubeadm-flags.env", 'KUBELET_KUBEADM_ARGS="--node-ip=10.0.0.1 --kube-reserved=cpu=1"\n'),
        ("10-kubeadm.conf", "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --config /etc/k.yaml $X\n"),
    ],
)
def test_files_of_kubelets_flags_are_known(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match="kubelet's flags are not read"):
        load_settings([path])


def test_unknown_keys_of_which_nothing_can_be_guessed_are_one_problem(write: Write) -> None:
    bare = {
        "cpuManagerPolicy": "static",
        "cpuCfsQuota": True,
        "imageGcHighThreshold": 85,
        "log-levle": "info",
    }
    path = write(bare)
    assert problems_of(path) == [
        ("log-levle", "an unknown key"),
        ("cpuCfsQuota, imageGcHighThreshold", "2 unknown keys"),
    ]
    with pytest.raises(ConfigError, match=f"kind: {KIND}"):
        load_settings([path])
    with pytest.raises(ConfigError, match=f"kind: {KIND}"):
        load_settings([write({"cpuCfsQuota": True})])


# --- what kubelet's file does not say ---


DEFAULTS = {
    "topologyManagerPolicy": "none",
    "topologyManagerScope": "container",
    "cpuManagerPolicy": "none",
    "memoryManagerPolicy": "None",
    "mergeDefaultEvictionSettings": False,
    "evictionPressureTransitionPeriod": "5m0s",
    "memoryReservationPolicy": "None",
    "reservedSystemCPUs": "",
    "evictionHard": {
        "memory.available": "100Mi",
        "nodefs.available": "10%",
        "nodefs.inodesFree": "5%",
        "imagefs.available": "15%",
        "imagefs.inodesFree": "5%",
    },
}
"""What /configz answers for a kubelet with an empty file, of the keys that are read."""


@pytest.mark.parametrize("engine", ["exact", "kubelet"])
@pytest.mark.parametrize("key", [None, *DEFAULTS])
def test_a_default_that_is_written_out_is_the_same_as_none(
    write: Write, engine: str, key: str | None
) -> None:
    written = DEFAULTS if key is None else {key: DEFAULTS[key]}
    path = write({"apiVersion": API, "kind": KIND, **written}, name="written.yaml")
    bare = of_kubelet(write({"apiVersion": API, "kind": KIND}), engine)
    same: dict[str, Any] = {"sources": (), "notices": ()}
    written_out = of_kubelet(path, engine)
    assert replace(written_out, **same) == replace(bare, **same)
    assert len(written_out.notices) == len(bare.notices) == 1
    assert bare.topology is TopologyPolicy.NONE


def test_kubelets_defaults_are_below_all_that_is_said(write: Write, tmp_path: Path) -> None:
    ours = tmp_path / "ours.toml"
    ours.write_text(
        'engine = "kubelet"\ncpuManagerPolicy = "static"\nmemoryManagerPolicy = "Static"\n'
        'topologyManagerPolicy = "restricted"\nevictionHard = { "pid.available" = "5%" }\n'
    )
    theirs = write({"apiVersion": API, "kind": KIND})
    for paths in ([ours, theirs], [theirs, ours]):
        settings = load_settings(paths)
        assert (settings.cpu_manager, settings.memory_manager) == ("static", MemoryManagerPolicy.STATIC)
        assert settings.topology is TopologyPolicy.RESTRICTED
        assert list(settings.eviction_hard) == ["pid.available"]
    assert of_kubelet(theirs, cpuManagerPolicy="static").cpu_manager == "static"
    assert load_settings([ours], {"engine": ["exact"]}, for_several_engines=True).cpu_manager == "static"


def test_default_evictions_are_merged_with_those_of_the_file(write: Write) -> None:
    hard = {"memory.available": "1Gi", "pid.available": "5%"}
    path = write(
        {"apiVersion": API, "kind": KIND, "mergeDefaultEvictionSettings": True, "evictionHard": hard}
    )
    assert sorted(of_kubelet(path).eviction_hard) == sorted({**DEFAULTS["evictionHard"], **hard})


@pytest.mark.parametrize(
    ("values", "path"),
    [
        # Kubelet 1.37.2 says of each that it cannot be unmarshalled; the first is how several guides have it.
        ({"cpuManagerPolicy": "static", "cpuManagerPolicyOptions": {"full-pcpus-only": True}},
         "cpuManagerPolicyOptions.full-pcpus-only"),
        ({"topologyManagerPolicyOptions": {"max-allowable-numa-nodes": 8}},
         "topologyManagerPolicyOptions.max-allowable-numa-nodes"),
        ({"kubeReserved": {"memory": 500}}, "kubeReserved.memory"),
        ({"systemReserved": {"cpu": 1}}, "systemReserved.cpu"),
        ({"evictionHard": {"memory.available": 100}}, 'evictionHard."memory.available"'),
        ({"featureGates": {"RotateKubeletServerCertificate": "true"}},
         "featureGates.RotateKubeletServerCertificate"),
    ],
)  # fmt: skip
def test_what_kubelet_does_not_decode_is_refused(write: Write, values: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as raised:
        of_kubelet(write({"apiVersion": API, "kind": KIND, **values}))
    assert [problem.path for problem in raised.value.problems] == [path]


# --- what has no effect ---


@pytest.mark.parametrize(
    ("engine", "values", "words"),
    [
        ("exact", {"cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
                   "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"}},
         ["prefer-closest-numa-nodes"]),
        ("exact", {"cpuManagerPolicyOptions": {"strict-cpu-reservation": "true"}},
         ["cpuManagerPolicyOptions.strict-cpu-reservation"]),
        ("exact", {"cpuManagerPolicyOptions": {"strict-cpu-reservation": "true"}, "reservedSystemCPUs": "0"},
         []),
        ("exact", {"kubeReserved": {"cpu": "70m", "memory": "1Gi"}}, ["kubeReserved.cpu"]),
        ("exact", {"kubeReserved": {"cpu": "70m"}, "systemReserved": {"cpu": "1"}},
         ["kubeReserved.cpu and systemReserved.cpu"]),
        ("exact", {"kubeReserved": {"cpu": "70m"}, "reservedSystemCPUs": "0"}, []),
        ("kubelet", {"kubeReserved": {"cpu": "70m"}}, []),
        ("exact", {"memoryThrottlingFactor": 0.9, "featureGates": {"MemoryQoS": False}},
         ["memoryThrottlingFactor"]),
        ("kubelet", {"memoryThrottlingFactor": 0.9, "featureGates": {"MemoryQoS": False}},
         ["memoryThrottlingFactor"]),
        ("kubelet", {"featureGates": {"AllBeta": False}}, ["PodLevelResources"]),
        ("exact", {"memoryThrottlingFactor": 0.8}, []),
        ("exact", {"memoryThrottlingFactor": 0.8, "featureGates": {"MemoryQoS": True}}, []),
        ("kubelet", {"featureGates": {"PodLevelResourceManagers": True, "NodeSwap": True}},
         ["PodLevelResourceManagers"]),
        ("exact", {"featureGates": {"PodLevelResourceManagers": True}}, []),
        ("exact", {"clusterDNS": ["10.96.0.10"], "maxPods": 250}, []),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_said_once(
    write: Write, engine: str, values: dict[str, Any], words: list[str]
) -> None:
    placing = {"topologyManagerPolicy": "restricted", "cpuManagerPolicy": "static"}
    path = write({"apiVersion": API, "kind": KIND, **placing, **values})
    notices = of_kubelet(path, engine).notices
    assert len(notices) == len(words)
    for notice, word in zip(notices, words, strict=True):
        assert notice.startswith(f"{path}: ")
        assert word in notice


@pytest.mark.parametrize(
    ("engine", "values", "flags", "said"),
    [
        ("exact", {}, {}, True),
        ("exact", {"topologyManagerPolicy": "none"}, {}, True),
        ("exact", {"topologyManagerPolicy": "best-effort"}, {}, False),
        ("exact", {}, {"topologyManagerPolicy": "none"}, False),
        ("kubelet", {}, {}, True),
        ("kubelet", {"memoryManagerPolicy": "Static"}, {}, False),
        ("kubelet", {}, {"cpuManagerPolicy": "static"}, False),
    ],
)
def test_what_kubelets_file_switches_off_is_said(
    write: Write, engine: str, values: dict[str, Any], flags: dict[str, str], said: bool
) -> None:
    path = write({"apiVersion": API, "kind": KIND, **values})
    assert len(of_kubelet(path, engine, **flags).notices) == said
