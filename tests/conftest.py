"""What holds for all tests."""

import gc
import os

# Torch's threads wait for each other by spinning. Two of them take twice the time of one for models as small as those
# here, and ten times as long beside the processes that tests start. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """What all modules hold stays to the end: no pass of the garbage collector need look through it, half a second."""
    gc.collect()
    gc.freeze()
