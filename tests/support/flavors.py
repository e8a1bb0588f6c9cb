"""The container runtimes that the fake one can be, by what their NRI does on the wire.

Written down apart from the table of ``bayplan.nri``, so that the one checks the other.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Flavor:
    """A runtime's name and version, and the NRI in it."""

    name: str
    version: str
    nri: tuple[int, int, int]

    @property
    def valid_mask(self) -> int:
        """Every event to which a plugin may subscribe."""
        return 0x3FFF if self.nri >= (0, 10, 0) else 0x7FF

    @property
    def one_rpc_per_event(self) -> bool:
        """Whether there is more than StateChange."""
        return self.nri >= (0, 12, 0)

    @property
    def told_version(self) -> str:
        """What Configure says of NRI's version."""
        return "v" + ".".join(map(str, self.nri)) if self.nri >= (0, 12, 0) else ""

    @property
    def tells_timeouts(self) -> bool:
        """Whether Configure has timeouts."""
        return self.nri >= (0, 7, 0)

    @property
    def chunks(self) -> bool:
        """Whether a Synchronize that is too large is cut into several."""
        return self.nri >= (0, 7, 0)

    @property
    def shows_unified(self) -> bool:
        """Whether plugins see the cgroup v2 values of a spec."""
        return self.nri >= (0, 10, 0)

    @property
    def adjusts_oom_score(self) -> bool:
        """Whether an adjustment of oom_score_adj has an effect."""
        return self.nri >= (0, 7, 0)

    @property
    def makes_cgroup_at_creation(self) -> bool:
        """Whether the OCI runtime makes the cgroup before the container is known, and updates are written to
        it from then on. containerd makes it at the start, from the spec, and writes to that of a running one
        only."""
        return self.name == "cri-o"


CONTAINERD_1_7_20: Final = Flavor("containerd", "1.7.20", (0, 6, 1))
CONTAINERD_1_7: Final = Flavor("containerd", "1.7.34", (0, 8, 0))
CONTAINERD_2_1: Final = Flavor("containerd", "v2.1.9", (0, 8, 0))
CONTAINERD_2_2: Final = Flavor("containerd", "v2.2.7", (0, 11, 0))
CONTAINERD_2_3: Final = Flavor("containerd", "v2.3.4", (0, 12, 0))
CONTAINERD_2_4: Final = Flavor("containerd", "v2.4.0-beta.0", (0, 12, 1))
CRIO_1_33: Final = Flavor("cri-o", "1.33.8", (0, 9, 1))
CRIO_1_36: Final = Flavor("cri-o", "1.36.3", (0, 11, 0))

ALL: Final = (
    CONTAINERD_1_7_20,
    CONTAINERD_1_7,
    CONTAINERD_2_1,
    CONTAINERD_2_2,
    CONTAINERD_2_3,
    CONTAINERD_2_4,
    CRIO_1_33,
    CRIO_1_36,
)
