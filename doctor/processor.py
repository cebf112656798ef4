"""The processor, as the CPU's attention and matrix products use it."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from baton.doctor.finding import Finding, ok, warning

CPUINFO = Path("/proc/cpuinfo")
VECTORS = ("avx2", "avx512f", "asimd", "sve")
BFLOAT16 = ("amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16")  # bf16: of ARM


@dataclass(frozen=True, slots=True)
class Processor:
    """What the kernel says of a processor."""

    name: str
    num_cores: int  # that we may use
    flags: frozenset[str]


def this_processor(cpuinfo: Path = CPUINFO) -> Processor:
    """The processor that we run on; without flags where the kernel does not say."""
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
    """Whether it has the vector instructions that torch's fast paths need."""
    bfloat16 = [flag for flag in BFLOAT16 if flag in processor.flags]
    vectors = [flag for flag in VECTORS if flag in processor.flags]
    of_bfloat16 = ", ".join(bfloat16) or "no bfloat16 instructions, so that --dtype float32 may be faster"
    found = f"{processor.name}, {processor.num_cores} cores; {', '.join(vectors)}; {of_bfloat16}"
    if vectors or not processor.flags:
        return ok("processor", found)
    return warning(
        "processor",
        f"{processor.name} has neither AVX2 nor newer vector instructions: torch computes many times slower",
        "use a processor with AVX2 or AVX-512; a virtual machine must pass the host's instructions on",
    )
