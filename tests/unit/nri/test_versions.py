"""Which NRI a runtime speaks: every row of the table, the evidence, and that nothing is assumed."""

import pytest

from bayplan.nri import (
    Capabilities,
    Event,
    Runtime,
    Version,
    events_of,
    infer_nri_version,
    known_events,
    mask_of,
)
from bayplan.nri.versions import TABLE, rows
from support import flavors

OLD_MASK = 0x7FF
NEW_MASK = 0x3FFF

CONTAINERD = {
    "1.7.0": "0.3.0", "1.7.6": "0.3.0",
    "1.7.7": "0.4.0", "1.7.13": "0.4.0",
    "1.7.14": "0.6.0", "1.7.15": "0.6.0",
    "1.7.16": "0.6.1", "1.7.25": "0.6.1",
    "1.7.26": "0.8.0", "1.7.34": "0.8.0",
    "2.0.0": "0.8.0", "2.0.11": "0.8.0",
    "2.1.0": "0.8.0", "2.1.9": "0.8.0",
    "2.2.0": "0.10.0",
    "2.2.1": "0.11.0", "2.2.7": "0.11.0",
    "2.3.0": "0.12.0", "2.3.7": "0.12.0",
    "2.4.0-beta.0": "0.12.1", "2.4.0": "0.12.3", "2.4.2": "0.12.3",
}  # fmt: skip
CRIO = {
    "1.26.0": "0.2.0", "1.26.1": "0.2.0",
    "1.26.2": "0.3.0", "1.26.3": "0.3.0",
    "1.26.4": "0.3.1-pre",
    "1.27.0": "0.3.0", "1.27.1": "0.3.1-pre", "1.27.8": "0.3.1-pre",
    "1.28.0": "0.3.1-pre", "1.28.11": "0.3.1-pre",
    "1.29.0": "0.5.0", "1.29.1": "0.5.0",
    "1.29.2": "0.6.0", "1.30.0": "0.6.0", "1.30.14": "0.6.0",
    "1.31.0": "0.6.1", "1.31.13": "0.6.1",
    "1.32.0": "0.9.0", "1.32.12": "0.9.0",
    "1.33.0": "0.9.1-pre", "1.33.8": "0.9.1-pre",
    "1.34.0": "0.10.0", "1.34.4": "0.10.0",
    "1.35.0": "0.11.0", "1.36.3": "0.11.0",
}  # fmt: skip
ROWS = [("containerd", *row) for row in CONTAINERD.items()] + [("cri-o", *row) for row in CRIO.items()]


def inferred(name: str, version: str, *, timeouts: bool = True, told: str = "") -> str:
    return str(infer_nri_version(name, version, tells_timeouts=timeouts, told_version=told))


@pytest.mark.parametrize(("name", "version", "nri"), ROWS)
def test_table(name, version, nri):
    spoken = Version.parse(nri.removesuffix("-pre"))
    told = f"v{nri}" if spoken >= Version(0, 12, 0) else ""
    assert inferred(name, version, timeouts=spoken >= Version(0, 7, 0), told=told) == nri


def test_every_row_of_the_table_is_tested():
    tested = {(name, str(Version.parse(version))) for name, version, _ in ROWS}
    in_table = {(name, str(first)) for name in TABLE for first, _ in rows(name)}
    assert in_table <= tested


def test_table_rises():
    for name in TABLE:
        firsts = [first for first, _ in rows(name)]
        assert firsts == sorted(firsts)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1.7.24", Version(1, 7, 24)),
        ("v2.2.1", Version(2, 2, 1)),
        ("v1.7.23-k3s2", Version(1, 7, 23)),
        ("1.7.24~ds1", Version(1, 7, 24)),
        ("2.0.5+azure-1", Version(2, 0, 5)),
        ("v2.2.0-225-ge9dc15b7a.m", Version(2, 2, 0)),
        ("1.34.0-dev", Version(1, 34, 0)),
        ("v2.4.0-beta.0", Version(2, 4, 0, 0)),
        ("2.0.0~rc.3", Version(2, 0, 0, 0)),
        ("2.1.0-rc.1-12-gabcdef0", Version(2, 1, 0, 0)),
        ("v0.9.1-0.20250219030224-e597e7849f24", Version(0, 9, 1, 0)),
        ("2.3", Version(2, 3, 0)),
        (" 1.7.0\n", Version(1, 7, 0)),
        ("(devel)", None),
        ("", None),
        ("unknown", None),
        ("e9dc15b7a", None),
        ("0.0.0-unknown", Version(0, 0, 0)),
    ],
)
def test_versions_as_runtimes_print_them(text, version):
    assert Version.parse(text) == version


def test_a_pre_release_comes_before_its_release():
    assert Version.parse("2.3.99") < Version.parse("2.4.0-beta.0") < Version.parse("2.4.0")


class TestEvidence:
    def test_a_told_version_beats_the_table(self):
        assert inferred("containerd", "2.3.9", told="v0.12.3") == "0.12.3"
        assert inferred("cri-o", "1.37.0", told="v0.12.0") == "0.12.0"

    def test_a_told_version_older_than_the_table_is_believed(self):
        assert inferred("containerd", "2.4.0", told="v0.12.0") == "0.12.0"

    @pytest.mark.parametrize("told", ["(devel)", "0.0.0-unknown", "garbage"])
    def test_a_build_that_does_not_know_its_version_is_at_least_the_first_that_tells(self, told):
        assert inferred("somebody", "7.0.0", told=told) == "0.12.0"
        assert inferred("containerd", "2.3.1", told=told) == "0.12.0"

    def test_a_pseudo_version_is_older_than_the_fix_it_is_named_after(self):
        nri = infer_nri_version(
            "containerd", "2.3.5", tells_timeouts=True, told_version="v0.12.1-0.20260601000000-0123456789ab"
        )
        assert not Capabilities.of(nri).safe_update_containers

    def test_timeouts_mean_at_least_0_7(self):
        assert inferred("somebody", "1.0.0", timeouts=True) == "0.7.0"
        assert inferred("containerd", "1.7.20", timeouts=True) == "0.7.0"

    def test_no_timeouts_mean_less_than_0_7_whatever_the_table_says(self):
        assert inferred("containerd", "2.2.7", timeouts=False) == "0.6.1"

    def test_no_told_version_means_less_than_0_12_whatever_the_table_says(self):
        assert inferred("containerd", "2.4.0", timeouts=True) == "0.11.0"

    def test_nothing_known(self):
        assert inferred("somebody", "unknown", timeouts=False) == "0.2.0"


class TestNewerThanTheTable:
    def test_a_newer_patch_is_not_assumed_to_have_the_fix(self):
        assert inferred("containerd", "2.3.99", timeouts=True, told="(devel)") == "0.12.0"
        assert inferred("cri-o", "1.36.99", timeouts=True) == "0.11.0"

    def test_a_newer_minor_has_what_the_last_known_one_has(self):
        assert inferred("containerd", "2.9.0", timeouts=True, told="(devel)") == "0.12.3"


@pytest.mark.parametrize(
    ("nri", "able"),
    [
        ("0.6.1", set()),
        ("0.7.0", {"oom_score_adj", "synchronize_chunks"}),
        ("0.9.1-0.20250219030224-e597e7849f24", {"oom_score_adj", "synchronize_chunks"}),
        ("0.10.0", {"oom_score_adj", "synchronize_chunks", "unified_input"}),
        ("0.11.0", {"oom_score_adj", "synchronize_chunks", "unified_input"}),
        (
            "0.12.0",
            {"oom_score_adj", "synchronize_chunks", "unified_input", "dedicated_rpcs", "memory_policy"},
        ),
        (
            "0.12.1",
            {
                "oom_score_adj",
                "synchronize_chunks",
                "unified_input",
                "dedicated_rpcs",
                "memory_policy",
                "safe_update_containers",
            },
        ),
    ],
)
def test_capabilities(nri, able):
    capabilities = Capabilities.of(Version.parse(nri))
    assert {name for name in Capabilities.__slots__ if getattr(capabilities, name)} == able


@pytest.mark.parametrize(
    ("nri", "mask"), [("0.2.0", OLD_MASK), ("0.9.1", OLD_MASK), ("0.10.0", NEW_MASK), ("0.12.1", NEW_MASK)]
)
def test_known_events(nri, mask):
    assert mask_of(known_events(Version.parse(nri))) == mask


@pytest.mark.parametrize("flavor", flavors.ALL, ids=str)
def test_agrees_with_the_fake_runtimes(flavor):
    nri = infer_nri_version(
        flavor.name, flavor.version, tells_timeouts=flavor.tells_timeouts, told_version=flavor.told_version
    )
    assert (nri.major, nri.minor, nri.patch) == flavor.nri
    assert mask_of(known_events(nri)) == flavor.valid_mask


class TestMask:
    def runtime(self, nri: str) -> Runtime:
        version = Version.parse(nri)
        return Runtime("containerd", "2", nri, Capabilities.of(version), known_events(version))

    def test_what_the_runtime_does_not_know_is_left_out(self):
        wanted = frozenset({Event.CREATE_CONTAINER, Event.UPDATE_POD_SANDBOX})
        assert self.runtime("0.9.0").mask(wanted) == 0x008
        assert self.runtime("0.10.0").mask(wanted) == 0x808

    def test_never_a_validator(self):
        assert self.runtime("0.12.0").mask(frozenset(Event)) == NEW_MASK & ~0x2000

    @pytest.mark.parametrize("wanted", [frozenset(), {Event.SYNCHRONIZE}, {Event.UPDATE_POD_SANDBOX}])
    def test_never_zero_which_means_everything(self, wanted):
        assert self.runtime("0.9.0").mask(frozenset(wanted)) == Event.REMOVE_CONTAINER.bit

    def test_masks_and_events_are_the_same(self):
        for mask in (0, 1, OLD_MASK, NEW_MASK):
            assert mask_of(events_of(mask)) == mask
        assert events_of(0xF0000) == frozenset()
