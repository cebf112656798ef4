"""The GPUs, as torch sees them. Only counted: whoever asks torch for more takes memory on each of them."""

import re
from pathlib import Path

import torch

from baton.doctor.finding import Finding, ok, warning

DRIVER = Path("/proc/driver/nvidia")


def check_gpus(driver: Path = DRIVER) -> Finding:
    """Which there are, and whether a driver is there that torch makes nothing of."""
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    if torch.cuda.is_available():
        return ok("gpus", f"{torch.cuda.device_count()}: {', '.join(_models(driver))}; torch is {built}")
    if not (driver / "version").exists():
        return ok("gpus", "none: no NVIDIA driver is loaded")
    return warning(
        "gpu-unused",
        f"an NVIDIA driver is loaded ({', '.join(_models(driver))}), but torch, {built}, finds no GPU",
        "install a torch build for the driver's CUDA version (in a clone: rm -r .venv && make setup TORCH_INDEX=), and "
        "let the container have the GPUs (docker run --gpus all)",
    )


def _models(driver: Path) -> list[str]:
    """What the driver calls its GPUs."""
    texts = [file.read_text() for file in sorted(driver.glob("gpus/*/information"))]
    return [model[1] for text in texts if (model := re.search(r"^Model:\s+(.+?)\s*$", text, re.MULTILINE))] or [
        "unnamed"
    ]
