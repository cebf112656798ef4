"""Checksums of blocks computed on the device compared with those computed on the CPU."""

import time

import torch

from baton.kvtransfer.checksum.block_checksum import WORDS, UnitChecksums
from benchmarks.gpu.stage import Record, Setting

NUM_BLOCKS = {False: 512, True: 6}
BLOCK_BYTES = {False: (8, 4096, 294912, 2359296), True: (8, 4096)}  # the last: 16 tokens of Qwen3-8B's shape


def check_checksums(record: Record, setting: Setting, block_bytes: int) -> None:
    """Compare the checksums, also after flipping a bit."""
    generator = torch.Generator().manual_seed(block_bytes)
    shape = (NUM_BLOCKS[setting.is_quick], block_bytes)
    host = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    pool = host.to(setting.device, copy=True)
    units = torch.randperm(len(pool), generator=generator)[:64].tolist()
    made = UnitChecksums(pool, block_bytes, WORDS)
    ours, expected = made.of(units), UnitChecksums(host, block_bytes, WORDS).of(units)
    record.find(f"blocks of {block_bytes} bytes", ours == expected, f"{len(units)} checksums equal to the host's")
    pool[units[0], -1] ^= 1
    record.find(f"blocks of {block_bytes} bytes, a bit changed", made.of(units)[0] != expected[0], "is detected")
    everything = list(range(len(pool)))
    made.of(everything)
    started_s = time.perf_counter()
    made.of(everything)  # returns when the result is on the host
    rate = pool.nbytes / (time.perf_counter() - started_s)
    record.note(f"blocks of {block_bytes} bytes: {rate / 1e9:.3g} GB/s")


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    for block_bytes in BLOCK_BYTES[setting.is_quick]:
        check_checksums(record, setting, block_bytes)
