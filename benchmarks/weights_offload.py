"""Decodes with weights on a disk, compared with the time in which the disk delivers what a step reads.

    python -m benchmarks.weights_offload --json benchmarks/results/weights_offload.json

Random checkpoints, a dense one and a mixture of experts, are served by an engine of this process's children: one
request, and all requests of a batch. Files are read past the page cache, so nothing has to be dropped. The first table
compares ways of reading a file of weights; the page cache is dropped for those that use it.
"""

import argparse
import ctypes
import json
import logging
import mmap
import os
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import torch

from baton.engine.checkpoint.model_config import model_config_of
from baton.engine.checkpoint.weight_memory import weights_bytes
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import EngineError
from baton.engine.offload.layout import CHUNK_BYTES
from baton.engine.offload.unit_reads import UnitReader
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.checkpoints import save_checkpoint

T = TypeVar("T")
POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14
PROMPT_TOKENS = 16
DENSE = {
    "vocab_size": 8000,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 14,
    "head_dim": 128,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "initializer_range": 0.02,
}
MIXTURE = {
    "vocab_size": 8000,
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "head_dim": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "initializer_range": 0.02,
}
MODELS = {"dense": ("qwen3", DENSE), "mixture": ("qwen3-moe", MIXTURE)}


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and the share of its weights that stays in memory."""

    model: str
    quantization: str | None
    share: float  # of the weights that can stream; 1: all stay
    num_requests: int


@dataclass(frozen=True, slots=True)
class Measured:
    """A case's decodes."""

    case: Case
    step_s: float  # median
    read_bytes: float  # in a step, mean
    waited_s: float  # of a step, mean
    floor_s: float  # in which the disk delivers `read_bytes` at the rate of `floor_rate`
    resident_bytes: int  # of the process

    @property
    def row(self) -> str:
        """Line of the table."""
        case = self.case
        ratio = f"{self.step_s / self.floor_s:.2f}" if self.read_bytes else ""
        return (
            f"| {case.model} | {case.quantization or 'bf16'} | {case.share:.0%} | {case.num_requests} | "
            f"{self.read_bytes / 1e6:.0f} | {self.step_s * 1e3:.1f} | {self.floor_s * 1e3:.1f} | {ratio} | "
            f"{self.waited_s * 1e3:.1f} | {case.num_requests / self.step_s:.2f} | {self.resident_bytes / 1e6:.0f} |"
        )


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--directory", type=Path, help="on the disk that is measured; default: a temporary one")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        directory = Path(name)
        for model, (family, sizes) in MODELS.items():
            save_checkpoint(family, directory / model, dtype=torch.bfloat16, **sizes)
        cases = [
            Case(model, quantization, share, count)
            for model, quantization in (("dense", None), ("dense", "int8"), ("mixture", None))
            for share in (0.0, 0.5, 1.0)
            for count in (1, 8)
        ]
        found = [_in_child(measure, directory, case, arguments.steps, arguments.threads) for case in cases]
        reads = _in_child(measure_reads, next((directory / "weights").glob("dense-*.weights")))
    print("| way of reading | GB/s |\n|---|---|")
    print("\n".join(f"| {way} | {rate / 1e9:.2f} |" for way, rate in reads.items()))
    print("\n| model | weights | resident | requests | MB read | step ms | floor ms | ratio | waited | tokens/s | MB |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    print("\n".join(each.row for each in found))
    if arguments.json is not None:
        result = {"reads_bytes_per_s": reads, "decodes": [asdict(each) for each in found]}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def _in_child(function: Callable[..., T], *arguments: object) -> T:
    """Call a function in a separate process, so that its memory can be measured alone."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def measure(directory: Path, case: Case, num_steps: int, num_threads: int) -> Measured:
    """Decode with a case's share of the weights in memory."""
    torch.set_num_threads(num_threads)
    config = EngineConfig(
        model=str(directory / case.model),
        device="cpu",
        quantization=case.quantization,
        kv_cache_memory_bytes=64 << 20,
        weights_offload="disk",
        weights_offload_dir=str(directory / "weights"),
    )
    with closing(Engine(replace(config, weights_memory_bytes=_memory(config, case.share)))) as engine:
        draw = random.Random(0)
        for index in range(case.num_requests):
            sampling = SamplingParams(temperature=0.0, max_tokens=num_steps + 2, ignore_eos=True)
            prompt = draw.choices(range(100, 8000), k=PROMPT_TOKENS)
            engine.add(Request(RequestId(f"r{index}"), prompt, len(prompt), sampling))
        engine.run(engine.schedule())
        engine.run(engine.schedule())
        before, times = engine.stats().offload, []
        while engine.has_work:
            started_s = time.perf_counter()
            engine.run(engine.schedule())
            times.append(time.perf_counter() - started_s)
        after, source = engine.stats().offload, engine.weights_source
        assert isinstance(source, UnitReader)
        read_bytes = (after.num_read_bytes - before.num_read_bytes) / len(times)
        waited_s = (after.waited_s - before.waited_s) / len(times)
        resident_bytes = _resident_bytes()  # first: the next line takes memory of its own
        floor_s = read_bytes / floor_rate(source.file.path)
        return Measured(case, statistics.median(times), read_bytes, waited_s, floor_s, resident_bytes)


def _memory(config: EngineConfig, share: float) -> int | None:
    """Return the limit between the least that is possible and all."""
    if share == 1:
        return None
    total = weights_bytes(Path(config.model), model_config_of(config), config.quantization)
    least = _least(config)
    return least + int(share * (total - least))


def _least(config: EngineConfig) -> int:
    """Return the smallest possible limit, from the error for a smaller one."""
    try:
        Engine(replace(config, weights_memory_bytes=1))
    except EngineError as error:
        if (found := re.search(r"at least (\d+)", str(error))) is not None:
            return int(found[1])
        raise
    raise AssertionError("no model's weights fit into a byte")


def _resident_bytes() -> int:
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) << 10


def floor_rate(path: Path) -> float:
    """Return the bytes per second of the fastest of some direct reads into memory that is there already."""
    return max(_read_rate(path, 4, os.O_DIRECT, is_huge=True, is_warm=True) for _ in range(3))


def measure_reads(path: Path) -> dict[str, float]:
    """Return the bytes per second of ways to bring a file into memory, each with cold pages at the destination."""
    return {
        "direct, 1 thread": _read_rate(path, 1, os.O_DIRECT),
        "direct, 4 threads": _read_rate(path, 4, os.O_DIRECT),
        "direct, 1 thread, huge pages": _read_rate(path, 1, os.O_DIRECT, is_huge=True),
        "direct, 4 threads, huge pages (as an engine)": _read_rate(path, 4, os.O_DIRECT, is_huge=True),
        "through the page cache, 1 thread": _read_rate(path, 1),
        "through the page cache, 4 threads": _read_rate(path, 4),
        "mapped, populated by 1 thread": _mapped_rate(path, 1),
        "mapped, populated by 4 threads": _mapped_rate(path, 4),
        "mapped, page faults of 1 thread": _faulting_rate(path),
        "through a warm page cache, 1 thread": _read_rate(path, 1, drops=False),
    }


def _chunks(path: Path) -> list[tuple[int, int]]:
    size = path.stat().st_size // CHUNK_BYTES * CHUNK_BYTES
    return [(offset, CHUNK_BYTES) for offset in range(0, size, CHUNK_BYTES)]


def _drop_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_rate(
    path: Path, num_threads: int, flags: int = 0, *, is_huge: bool = False, is_warm: bool = False, drops: bool = True
) -> float:
    chunks, descriptor = _chunks(path), os.open(path, os.O_RDONLY | flags)
    if drops:
        _drop_cache(path)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, len(chunks) * CHUNK_BYTES, flags=private) as memory, memoryview(memory) as view:
        if is_huge:
            memory.madvise(mmap.MADV_HUGEPAGE)
        if is_warm:
            view[:: mmap.PAGESIZE] = bytes(len(view[:: mmap.PAGESIZE]))

        def read(chunk: tuple[int, int]) -> None:
            with view[chunk[0] : sum(chunk)] as target:
                os.preadv(descriptor, [target], chunk[0])

        rate = _rate(read, chunks, num_threads)
    os.close(descriptor)
    return rate


def _mapped_rate(path: Path, num_threads: int) -> float:
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    chunks = _chunks(path)
    _drop_cache(path)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    address = torch.frombuffer(mapped, dtype=torch.uint8).data_ptr()

    def populate(chunk: tuple[int, int]) -> None:
        if madvise(address + chunk[0], chunk[1], POPULATE_READ):
            raise OSError(ctypes.get_errno(), "madvise")

    return _rate(populate, chunks, num_threads)


def _faulting_rate(path: Path) -> float:
    _drop_cache(path)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    pages = torch.frombuffer(mapped, dtype=torch.uint8)[:: mmap.PAGESIZE]
    started_s = time.perf_counter()
    pages.max()
    return len(mapped) / (time.perf_counter() - started_s)


def _rate(read: Callable[[tuple[int, int]], None], chunks: Sequence[tuple[int, int]], num_threads: int) -> float:
    started_s = time.perf_counter()
    with ThreadPoolExecutor(num_threads) as threads:
        list(threads.map(read, chunks))
    return sum(num_bytes for _, num_bytes in chunks) / (time.perf_counter() - started_s)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main()
