"""GPUs that torch can use, found in a subprocess: this process imports no torch and touches no GPU."""

import ctypes
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

DRIVER = "libcuda.so.1"
PROGRAM = (
    "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0, torch.version.cuda is not None)"
)
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class VisibleGpus:
    """Number of GPUs, and a phrase that explains it."""

    count: int
    reason: str

    @property
    def auto_device(self) -> str:
        """The device that `auto` resolves to."""
        return "cuda" if self.count else "cpu"


@cache
def visible_gpus(driver: str = DRIVER) -> VisibleGpus:
    """Return the GPUs that torch can use here. Starts a subprocess that imports torch, if NVIDIA's driver is found."""
    try:
        ctypes.CDLL(driver)
    except OSError:
        return VisibleGpus(0, "no NVIDIA driver is installed")
    command = (sys.executable, "-P", "-W", "ignore", "-c", PROGRAM)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        count, has_cuda = done.stdout.split()[-2:]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return VisibleGpus(0, f"torch failed to report GPUs ({type(error).__name__})")
    return describe_gpus(int(count), has_cuda=has_cuda == "True")


def describe_gpus(count: int, *, has_cuda: bool) -> VisibleGpus:
    """Describe torch's GPU count in words; `has_cuda`: this build of torch has CUDA."""
    if count:
        return VisibleGpus(count, f"torch sees {count} GPU{'s' if count > 1 else ''}")
    return VisibleGpus(0, "torch sees no GPU" if has_cuda else "this build of torch has no CUDA")
