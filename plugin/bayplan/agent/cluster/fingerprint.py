"""The fingerprint of the pods on a node, by which a scheduler sees whether it and the publisher of a
NodeResourceTopology know the same ones. Pure.

Source: podfingerprint, version v001, which scheduler-plugins and NFD use: the XXH64 of each pod's name, with
that of its namespace as the seed; sorted; together the XXH64 of these as little-endian words of 64 bits.
"""

from collections.abc import Iterable
from typing import Final

from xxhash import xxh64, xxh64_intdigest

_PREFIX: Final = "pfp0v001"


def pod_fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """The fingerprint of *pods*, each a namespace and a name, in whatever order.

    >>> pod_fingerprint([])
    'pfp0v001ef46db3751d8e999'
    """
    hashes = sorted(
        xxh64_intdigest(name.encode(), seed=xxh64_intdigest(namespace.encode())) for namespace, name in pods
    )
    together = xxh64()
    for one in hashes:
        together.update(one.to_bytes(8, "little"))
    return f"{_PREFIX}{together.hexdigest()}"
