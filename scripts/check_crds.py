"""Check the chart against definitions of custom resources (CRDs) as their projects release them.

    python scripts/check_crds.py DIRECTORY

1. Every example set of values is rendered for every version of Kubernetes that the chart supports, and each object is
   validated by the definitions in DIRECTORY (`*.yaml`): unknown fields, defaults, and the rules in CEL.
2. The definitions that the tests use (tests/helm/crds) are compared with the released ones. Fields that an older
   release does not know yet are listed; a field that the release restricts more than ours is a fault.

Ends with status 1 if there is a fault.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.helm import charts, custom_resources, schemas
from tests.helm.cases import CASES
from tests.helm.schema.released_crds import fault, fields
from tests.helm.test_render import KUBE_VERSIONS


def main() -> int:
    """Return the exit status."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    os.environ["BATON_CRDS"] = sys.argv[1]
    released = custom_resources.released(Path(sys.argv[1]))
    faults = [*rendering_faults(), *definition_faults(released)]
    print("\n".join(faults) if faults else "no fault")
    return int(bool(faults))


def rendering_faults() -> Iterator[str]:
    """Yield what the API server would refuse."""
    print(f"{len(CASES)} sets of values, {len(KUBE_VERSIONS)} versions of Kubernetes")
    for kube_version in KUBE_VERSIONS:
        for name, values in CASES.items():
            for each in charts.render(values, kube_version=kube_version):
                try:
                    schemas.check(each, kube_version)
                except schemas.Invalid as error:
                    yield f"values {name}, Kubernetes {kube_version}: {error}"


def definition_faults(released: dict[str, custom_resources.Manifest]) -> Iterator[str]:
    """Yield where our definitions are less strict than the released ones, and print what cannot be compared."""
    for name, ours in sorted(custom_resources.own().items()):
        if name not in released:
            print(f"{name}: not in the directory, only compared with ours")
            continue
        for each in fields(ours, released[name]):
            if each.released is None:
                print(f"{each.path}: unknown in the release")
            if (text := fault(each)) is not None:
                yield text


if __name__ == "__main__":
    sys.exit(main())
