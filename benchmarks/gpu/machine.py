"""Description of the machine of GPU results."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

from benchmarks.machine import MachineInfo, describe

PACKAGES = ("flashinfer-python", "nixl", "transformers", "triton", "vllm")


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """Machine description stored with every result."""

    gpu: str
    gpu_memory_gib: int
    capability: str
    cuda: str
    packages: dict[str, str]  # installed packages with versions
    host: MachineInfo


def describe_gpu(device: torch.device) -> GpuMachine:
    """Describe this machine."""
    packages = {name: found for name in PACKAGES if (found := _version(name))}
    if device.type != "cuda":
        return GpuMachine("none", 0, "", torch.version.cuda or "", packages, describe())
    properties = torch.cuda.get_device_properties(device)
    return GpuMachine(
        gpu=properties.name,
        gpu_memory_gib=round(properties.total_memory / 2**30),
        capability=f"{properties.major}.{properties.minor}",
        cuda=torch.version.cuda or "",
        packages=packages,
        host=describe(),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
