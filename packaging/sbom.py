"""Writes the bill of materials of what is handed out, in CycloneDX 1.6: the packages that bayplan needs at
run time, with versions and hashes of requirements.lock, licenses, and who needs whom.

The same input gives the same bytes: no clock, no serial number.
"""

import argparse
import json
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
NEEDED = re.compile(r"^[A-Za-z0-9._-]+")


def read_lock(text: str) -> dict[tuple[str, str], list[str]]:
    """Name and version of each package of a requirements.lock, with the SHA-256 of the files it may come
    as.
    """
    hashes: dict[tuple[str, str], list[str]] = {}
    for line in text.splitlines():
        if pinned := PINNED.match(line):
            current = hashes.setdefault((normalized(pinned[1]), pinned[2]), [])
        elif found := HASH.search(line):
            current.append(found[1])
    return hashes


def normalized(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(requirements: list[str]) -> set[str]:
    """The names in *requirements*, extras left out."""
    return {
        normalized(match[0])
        for one in requirements
        if "extra ==" not in one and (match := NEEDED.match(one)) is not None
    }


def licenses(package: Distribution) -> list[dict[str, Any]]:
    """What *package* says of its license: an SPDX expression, else words of its own."""
    if expression := package.metadata.get("License-Expression"):
        return [{"expression": expression}]
    classifiers = package.metadata.get_all("Classifier") or []
    words = [one.rpartition(" :: ")[2] for one in classifiers if one.startswith("License :: ")]
    words = words or [package.metadata.get("License") or "unknown"]
    return [{"license": {"name": one}} for one in words]


def bill(
    version: str, packages: list[Distribution], hashes: dict[tuple[str, str], list[str]]
) -> dict[str, Any]:
    """The document. Every one of *packages* has to be locked, in that version.

    Raises:
        KeyError: one is not.
    """
    present = {normalized(one.name): one for one in packages}
    components, dependencies = [], []
    refs = {name: f"pkg:pypi/{name}@{one.version}" for name, one in present.items()}
    for name, one in sorted(present.items()):
        locked = hashes[name, one.version]
        components.append(
            {
                "type": "library",
                "bom-ref": refs[name],
                "name": name,
                "version": one.version,
                "licenses": licenses(one),
                "purl": refs[name],
                "externalReferences": [
                    {
                        "type": "distribution",
                        "url": f"https://pypi.org/project/{name}/{one.version}/",
                        "hashes": [{"alg": "SHA-256", "content": each} for each in locked],
                    }
                ],
            }
        )
        needs = needed(one.requires or []) & present.keys()
        dependencies.append({"ref": refs[name], "dependsOn": sorted(refs[each] for each in needs)})
    own = f"pkg:pypi/bayplan@{version}"
    dependencies.append({"ref": own, "dependsOn": sorted(refs.values())})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "bayplan",
                "version": version,
                "licenses": [{"expression": "Apache-2.0"}],
                "purl": own,
            }
        },
        "components": components,
        "dependencies": dependencies,
    }


def main() -> None:
    """The bill of materials of the packages in a directory, on standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True, help="bayplan's own version")
    parser.add_argument("--packages", required=True, help="the directory they are installed in")
    parser.add_argument("--lock", required=True, type=Path, help="requirements.lock")
    arguments = parser.parse_args()
    packages = list(distributions(path=[arguments.packages]))
    document = bill(arguments.version, packages, read_lock(arguments.lock.read_text()))
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
