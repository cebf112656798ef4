"""Bill of materials of a release, as CycloneDX: Baton, and the tested version of each package that `cluster` needs."""

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

NAME = "baton-serve"
PINNED = re.compile(r"^([\w.-]+)==(\S+)(?: --hash=sha256:(\w{64}))?$", re.MULTILINE)


def bill(constraints: str, version: str) -> str:
    """Return the bill, from the text of the images' constraints. Raises ValueError if it breaks CycloneDX's schema."""
    root = component(NAME, version, None)
    root.type = ComponentType.APPLICATION
    made = Bom()
    made.metadata.component = root
    packages = [component(*match.groups()) for match in PINNED.finditer(constraints)]
    made.components.update(packages)
    made.register_dependency(root, packages)
    text = JsonV1Dot6(made).output_as_string(indent=1)
    if (error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)) is not None:
        raise ValueError(f"the bill of materials is invalid: {error}")
    return text


def component(name: str, version: str, sha256: str | None) -> Component:
    """Return a package of PyPI, with its license if it is installed here and has an SPDX expression."""
    hashes = [] if sha256 is None else [HashType(alg=HashAlgorithm.SHA_256, content=sha256)]
    try:
        expression = metadata(name).get("License-Expression")
    except PackageNotFoundError:  # of another platform
        expression = None
    licenses = [LicenseFactory().make_from_string(expression)] if expression else []
    purl = PackageURL("pypi", None, name, version)
    return Component(name=name, version=version, purl=purl, bom_ref=str(purl), hashes=hashes, licenses=licenses)


def write_bill(root: Path, version: str, path: Path) -> None:
    """Write the bill. Raises ValueError."""
    constraints = (root / "scripts/image/constraints.txt").read_text(encoding="utf-8")
    path.write_text(bill(constraints, version), encoding="utf-8")
