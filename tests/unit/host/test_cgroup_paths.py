import pytest

from bayplan.errors import ParseError
from bayplan.host.hierarchy import (
    clean,
    container_path,
    container_paths,
    expand_slice,
    is_within,
    kubepods_path,
    parse_membership,
    pod_path,
)

UID = "0a1b2c3d_0000_1111_2222_333344445555"
ID = "a3f1" * 16
KUBEPODS = "/kubepods.slice"
BURSTABLE = f"{KUBEPODS}/kubepods-burstable.slice/kubepods-burstable-pod{UID}.slice"


@pytest.mark.parametrize(
    ("cgroups_path", "path"),
    [
        (f"kubepods-burstable-pod{UID}.slice:cri-containerd:{ID}", f"{BURSTABLE}/cri-containerd-{ID}.scope"),
        (f"kubepods-burstable-pod{UID}.slice:crio:{ID}", f"{BURSTABLE}/crio-{ID}.scope"),
        (f"kubepods-pod{UID}.slice:crio:{ID}", f"{KUBEPODS}/kubepods-pod{UID}.slice/crio-{ID}.scope"),
        (f"/kubepods/besteffort/pod{UID}/{ID}", f"/kubepods/besteffort/pod{UID}/{ID}"),
        (f"/kubepods/burstable/pod{UID}/crio-{ID}", f"/kubepods/burstable/pod{UID}/crio-{ID}"),
        (f"/k8s.io/{ID}", f"/k8s.io/{ID}"),
        ("//kubepods///pod1/", "/kubepods/pod1"),
        (f":libpod:{ID}", f"/system.slice/libpod-{ID}.scope"),
        (f"-.slice:docker:{ID}", f"/docker-{ID}.scope"),
        (f"user.slice::{ID}", f"/user.slice/{ID}.scope"),
        ("machine.slice:x:inner.slice", "/machine.slice/inner.slice"),
        ("/odd:path:with-colons", "/odd:path:with-colons"),
    ],
)
def test_the_path_that_runtimes_make_of_it(cgroups_path, path):
    assert container_path(cgroups_path) == path
    assert container_paths(cgroups_path) == (path,)


@pytest.mark.parametrize(
    "cgroups_path",
    [
        "relative/to/the/runtime",
        "just-a-name",
        "/kubepods/../../etc",
        "/kubepods/./x",
        "/kubepods/x\0y",
        "kubepods.slice:cri-containerd:",
        "kubepods.slice:cri-containerd:../../x",
        "a/b.slice:cri-containerd:x",
        "kubepods:cri-containerd:x",
        "kubepods--burstable.slice:crio:x",
        "-kubepods.slice:crio:x",
        "kubepods-.slice:crio:x",
        "..",
        "kubepods.slice:crio",
    ],
)
def test_what_is_no_path_below_the_mount(cgroups_path):
    with pytest.raises(ParseError):
        container_path(cgroups_path)


def test_without_a_cgroups_path_every_spelling_is_tried():
    assert container_paths("", f"kubepods-burstable-pod{UID}.slice", ID) == (
        f"{BURSTABLE}/cri-containerd-{ID}.scope",
        f"{BURSTABLE}/crio-{ID}.scope",
        f"{BURSTABLE}/{ID}",
        f"{BURSTABLE}/crio-{ID}",
    )
    assert container_paths("", BURSTABLE, ID)[0] == f"{BURSTABLE}/cri-containerd-{ID}.scope"
    assert f"/kubepods/pod1/{ID}" in container_paths("", "/kubepods/pod1", ID)


@pytest.mark.parametrize(("parent", "container_id"), [("", ""), ("/kubepods/pod1", ""), ("", ID)])
def test_nothing_to_go_by(parent, container_id):
    with pytest.raises(ParseError, match="a cgroups path, or a cgroup parent and a container id"):
        container_paths("", parent, container_id)


def test_a_container_id_cannot_lead_out():
    with pytest.raises(ParseError):
        container_paths("", "/kubepods/pod1", "../../x/..")


def test_slices_spell_their_nesting():
    assert expand_slice("a.slice") == "/a.slice"
    assert expand_slice("a-b-c.slice") == "/a.slice/a-b.slice/a-b-c.slice"
    assert expand_slice("-.slice") == "/"
    for name in ("", ".slice", "a", "a.scope", "a--b.slice", "-a.slice", "a-.slice", "a/b.slice"):
        with pytest.raises(ParseError):
            expand_slice(name)


@pytest.mark.parametrize(
    ("path", "above"),
    [
        ("/kubepods/burstable/pod1", "/kubepods"),
        ("/kubepods.slice/kubepods-pod1.slice", "/kubepods.slice"),
        ("/a.slice/a-kubepods.slice/a-kubepods-burstable.slice", "/a.slice/a-kubepods.slice"),
        ("/root/kubepods/pod1", "/root/kubepods"),
        ("/system.slice/notkubepods.slice/pod1", ""),
        ("/machine/pod-kubepods", ""),
    ],
)
def test_the_cgroup_of_all_pods(path, above):
    assert kubepods_path(path) == above


def test_a_pod_path_is_a_path_or_the_name_of_a_slice():
    assert pod_path("/kubepods/burstable/pod1") == "/kubepods/burstable/pod1"
    assert pod_path("kubepods-pod1.slice") == "/kubepods.slice/kubepods-pod1.slice"
    with pytest.raises(ParseError):
        pod_path("pod1")


def test_within_goes_by_whole_names():
    assert is_within("/a/b", "/a/b")
    assert is_within("/a/b", "/a")
    assert is_within("/a/b", "/")
    assert not is_within("/ab", "/a")
    assert not is_within("/a", "/a/b")


def test_clean_leaves_only_single_slashes():
    assert clean("/") == "/"
    assert clean("//a//b/") == "/a/b"


def test_membership_of_both_versions():
    text = "12:cpu,cpuacct:/x\n4:memory:/m:with:colons\n1:name=systemd:/s\n0::/user.slice/a b\n"
    assert parse_membership(text) == {
        "cpu": "/x",
        "cpuacct": "/x",
        "memory": "/m:with:colons",
        "name=systemd": "/s",
        "": "/user.slice/a b",
    }


@pytest.mark.parametrize("text", ["banana", "x::/a", "0:/a", "0::a"])
def test_garbage_in_membership(text):
    with pytest.raises(ParseError):
        parse_membership(f"{text}\n")
