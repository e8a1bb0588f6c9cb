"""Where the kernel lets a process run and allocate: cpuset and affinity or memory policy combined."""

import re
from pathlib import Path

from bayplan.sets import CpuSet, NodeSet


def allowed_cpus(pid: int) -> CpuSet:
    """The CPUs of the process's main thread."""
    return CpuSet.parse(_list(pid, "Cpus"))


def allowed_mems(pid: int) -> NodeSet:
    """The NUMA nodes of the process's main thread."""
    return NodeSet.parse(_list(pid, "Mems"))


def _list(pid: int, name: str) -> str:
    found = re.search(rf"^{name}_allowed_list:(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return found[1].strip()
