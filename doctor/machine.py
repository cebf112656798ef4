"""Checks of one machine that only inspect it, without measurements."""

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch

from baton.doctor.finding import Finding, ok, warning
from baton.doctor.packages import check_extras, check_packages
from baton.doctor.rdma import check_rdma, rdma_ports
from baton.doctor.system_limits import (
    check_file_limit,
    check_huge_pages,
    check_pinned_memory,
    check_shared_memory,
    process_limits,
    shared_memory_space,
)

# Compiled modules of a worker.
ENGINE_MODULES = tuple(
    f"baton.engine.native.{name}"
    for name in ("block_hash", "thread_team", "paged_attention", "layer_ops", "products", "grouped_products")
)


def check_compiled(modules: Sequence[str]) -> Finding:
    """Check that the modules were compiled at installation and load; their fallbacks in Python or torch are slower."""
    missing: list[str] = []
    for name in modules:
        try:
            import_module(name)
        except ImportError:
            missing.append(name)
    if not missing:
        return ok("compiled-modules", f"{', '.join(modules)}")
    return warning(
        "compiled-modules",
        f"{', '.join(missing)} cannot be loaded; the fallback in Python or torch is several times slower",
        "install a C++ compiler and Python's headers, then reinstall Baton; the installation log has the error",
    )


DRIVER = Path("/proc/driver/nvidia")


def check_gpus(driver: Path = DRIVER) -> Finding:
    """Report the GPUs; warn if a driver is loaded but torch finds no GPU."""
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    if torch.cuda.is_available():
        return ok("gpus", f"{torch.cuda.device_count()}: {', '.join(_models(driver))}; torch is {built}")
    if not (driver / "version").exists():
        return ok("gpus", "none: no NVIDIA driver is loaded")
    return warning(
        "gpu-unused",
        f"an NVIDIA driver is loaded ({', '.join(_models(driver))}), but torch, {built}, finds no GPU",
        "install a torch build for the driver's CUDA version (in a clone: rm -r .venv && make setup TORCH_INDEX=), and "
        "give the container access to the GPUs (docker run --gpus all)",
    )


def _models(driver: Path) -> list[str]:
    """Return the model names of the driver's GPUs."""
    texts = [file.read_text() for file in sorted(driver.glob("gpus/*/information"))]
    return [model[1] for text in texts if (model := re.search(r"^Model:\s+(.+?)\s*$", text, re.MULTILINE))] or [
        "unnamed"
    ]


CPUINFO = Path("/proc/cpuinfo")
VECTORS = ("avx2", "avx512f", "asimd", "sve")
BFLOAT16 = ("amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16")  # bf16: of ARM


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor as described by the kernel."""

    name: str
    num_cores: int  # available to this process
    flags: frozenset[str]


def this_processor(cpuinfo: Path = CPUINFO) -> Processor:
    """Return this machine's processor; without flags if the kernel does not report them."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags") or fields.get("Features") or ""
    name = fields.get("model name") or platform.processor() or platform.machine()
    return Processor(name, len(os.sched_getaffinity(0)), frozenset(flags.split()))


def check_processor(processor: Processor) -> Finding:
    """Check for the vector instructions that torch's fast paths need."""
    bfloat16 = [flag for flag in BFLOAT16 if flag in processor.flags]
    vectors = [flag for flag in VECTORS if flag in processor.flags]
    bfloat16_support = ", ".join(bfloat16) or "no bfloat16 instructions, so products widen it to float32"
    found = f"{processor.name}, {processor.num_cores} cores; {', '.join(vectors)}; {bfloat16_support}"
    if vectors or not processor.flags:
        return ok("processor", found)
    return warning(
        "processor",
        f"{processor.name} has neither AVX2 nor newer vector instructions: torch computes many times slower",
        "use a processor with AVX2 or AVX-512; a virtual machine must expose the host's instructions",
    )


def examine_machine(pool_bytes: int | None = None, modules: Sequence[str] = ENGINE_MODULES) -> list[Finding]:
    """Check the machine of this process; takes a fraction of a second, on any thread.

    pool_bytes: size of the process's KV pool; None: unknown. modules: compiled modules that it uses.
    """
    limits = process_limits()
    ports = rdma_ports()
    return [
        *check_packages(),
        *check_extras(),
        check_compiled(modules),
        check_processor(this_processor()),
        check_shared_memory(shared_memory_space()),
        check_huge_pages(),
        check_pinned_memory(limits, pool_bytes, has_rdma=bool(ports)),
        check_file_limit(limits),
        check_gpus(),
        *check_rdma(ports),
    ]
