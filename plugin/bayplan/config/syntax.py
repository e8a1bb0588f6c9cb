"""From the texts of a flag to the plain value that a file would hold in its place.

Only the form of the flag is parsed here, in kubelet's spelling; the readers check the values, from flags and
files alike. A flag may be given more than once: the last one counts; of a list, all of them together.
"""

from collections.abc import Callable, Sequence
from typing import Final

from bayplan.errors import ParseError
from bayplan.printable import pattern

_INTEGER: Final = pattern(r"\+?[0-9]{1,18}")
_LISTS: Final = ("namespaces", "containers")
_KUBELETS_FORM: Final = "numaNodeID:type=quantity[,type=quantity...]"


def text(texts: Sequence[str]) -> object:
    """The last text as it is."""
    return texts[-1]


def number(texts: Sequence[str]) -> object:
    """The last text as a number, or as it is if it is none."""
    try:
        return float(texts[-1])
    except ValueError:
        return texts[-1]


def whole_number(texts: Sequence[str]) -> object:
    """The last text as a whole number, or as it is if it is none."""
    return int(texts[-1]) if _INTEGER.fullmatch(texts[-1]) else texts[-1]


def switch(texts: Sequence[str]) -> object:
    """The last text as true or false, or as it is if it is neither."""
    return _switch(texts[-1])


def switches(texts: Sequence[str]) -> object:
    """``A=true,B=false``."""
    return {name: _switch(value) for name, value in _pairs(texts, "=").items()}


def assignments(sign: str) -> Callable[[Sequence[str]], object]:
    """``a=1,b=2``, with *sign* between names and values."""
    return lambda texts: _pairs(texts, sign)


def reserved_memory(texts: Sequence[str]) -> object:
    """``0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=2Gi`` as the list that reservedMemory is.

    As in kubelet an empty text forgets those before it.
    """
    reservations: list[object] = []
    counted = list(texts)
    while "" in counted:
        counted = counted[counted.index("") + 1 :]
    for one in ";".join(counted).split(";"):
        if not one.strip():
            continue
        node, colon, limits = one.strip().partition(":")
        if not colon:
            expected = "N:TYPE=AMOUNT[,TYPE=AMOUNT...] for a NUMA node N"
            kubelet = f"the reserved memory has incorrect format, expected {_KUBELETS_FORM}, got {one}"
            raise ParseError("reserved memory", one, f"{expected}; kubelet: {kubelet}")
        node_id: object = int(node) if _INTEGER.fullmatch(node) else node
        reservations.append({"numaNode": node_id, "limits": _pairs([limits], "=")})
    return reservations


def cpu_rules(texts: Sequence[str]) -> object:
    """``namespaces=a,labels=app:db,cpus=exclusive=2;...`` as the list of tables that cpuRules is; namespaces,
    labels and containers may come several times in a rule."""
    rules: list[dict[str, object]] = []
    for one in ";".join(texts).split(";"):
        if not one.strip():
            continue
        rule: dict[str, object] = {}
        lists: dict[str, list[str]] = {}
        labels: dict[str, str] = {}
        for part in one.split(","):
            name, found, value = (word.strip() for word in part.partition("="))
            if not (found and name):
                raise ParseError("rule", part, "NAME=VALUE[,NAME=VALUE...]")
            if name == "labels":
                key, _, label = value.partition(":")
                labels[key] = label
            elif name in _LISTS:
                lists.setdefault(name, []).append(value)
            else:
                rule[name] = value
        rules.append({**lists, **({"labels": labels} if labels else {}), **rule})
    return rules


def cpu_pools(texts: Sequence[str]) -> object:
    """``db=2-8,log=1-2:efficiency`` as the table that cpuPools is; one number is the most."""
    pools: dict[str, dict[str, object]] = {}
    for name, text in _pairs(texts, "=").items():
        sizes, colon, kind = text.partition(":")
        least, dash, most = (one.strip() for one in sizes.rpartition("-"))
        found: dict[str, object] = {"minimum": whole_number([least])} if dash else {}
        pools[name] = {**found, "maximum": whole_number([most]), **({"cpuKind": kind} if colon else {})}
    return pools


def hugepage_pools(texts: Sequence[str]) -> object:
    """``0-3:hugepages-2Mi=0-8Gi,...;...`` as the table that hugepagePools is; one amount is the most."""
    nodes: dict[str, dict[str, object]] = {}
    for one in ";".join(texts).split(";"):
        if not one.strip():
            continue
        key, colon, pools = (part.strip() for part in one.partition(":"))
        if not colon:
            raise ParseError("pools", one, "NODES:TYPE=LEAST-MOST[,TYPE=LEAST-MOST...]")
        if key in nodes:
            raise ParseError("pools", one, f"the nodes of {key} once")
        row: dict[str, object] = {}
        for name, text in _pairs([pools], "=").items():
            least, dash, most = (part.strip() for part in text.rpartition("-"))
            row[name] = {**({"minimum": least} if dash else {}), "maximum": most}
        nodes[key] = row
    return nodes


def _pairs(texts: Sequence[str], sign: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for one in ",".join(texts).split(","):
        if not one.strip():
            continue
        name, found, value = (part.strip() for part in one.partition(sign))
        if not (found and name):
            raise ParseError("assignment", one, f"NAME{sign}VALUE[,NAME{sign}VALUE...]")
        if name in pairs:
            raise ParseError("assignment", one, f"one value for {name}")
        pairs[name] = value
    return pairs


def _switch(value: str) -> object:
    return {"true": True, "false": False}.get(value.lower(), value)
