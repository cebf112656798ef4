"""Software bill of materials of the installed Python packages, printed as CycloneDX 1.5."""

import json
from importlib.metadata import Distribution, distributions
from urllib.parse import quote

from packaging.utils import canonicalize_name


def component(package: Distribution) -> dict[str, object]:
    """Return the entry of one package, with its package URL."""
    name = canonicalize_name(package.metadata["Name"])
    found: dict[str, object] = {
        "type": "library",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name}@{quote(package.version)}",
    }
    expression = package.metadata.get("License-Expression")
    return found | ({"licenses": [{"expression": expression}]} if expression else {})


def bill() -> dict[str, object]:
    """Return the bill of all packages in this interpreter's environment."""
    components = {str(each["purl"]): each for each in map(component, distributions())}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "components": [components[purl] for purl in sorted(components)],
    }


if __name__ == "__main__":
    print(json.dumps(bill(), indent=1))
