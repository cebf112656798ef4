"""What holds for all tests."""

import gc
import os
from pathlib import Path

import pytest

# Torch's threads wait for each other by spinning. Two of them take twice the time of one for models as small as those
# here, and ten times as long beside the processes that tests start. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

TESTS = Path(__file__).parent
RAY = "ray"
FIRST = (RAY, "faults", "integration")  # which take longest


@pytest.hookimpl(tryfirst=True)  # xdist looks at the groups when its turn comes
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests stay in one process. So do all on Ray: two of these at once wait for each other on two cores."""
    groups = {item: _group(item.path.relative_to(TESTS)) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: _place(groups[item]))


def _group(file: Path) -> str:
    on_ray = file.match("integration/test_ray_*") or file.match("helm/test_on_ray.py")
    return RAY if on_ray else str(file)


def _place(group: str) -> int:
    """What takes longest comes first, so that the processes end together."""
    directory = Path(group).parts[0]
    return FIRST.index(directory) if directory in FIRST else len(FIRST)


def pytest_collection_finish() -> None:
    """What all modules hold stays to the end: no pass of the garbage collector need look through it, half a second."""
    gc.collect()
    gc.freeze()
