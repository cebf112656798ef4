"""Bandwidth of KV handover between two engine processes on one device, with blocks of Qwen3-8B's shape."""

import asyncio
from statistics import median

from benchmarks.gpu.engine_session import EngineSession, start_engine
from benchmarks.gpu.handover_engines import PrefillProcess, Reader, transports_of
from benchmarks.gpu.small_models import SmallModel, saved
from benchmarks.gpu.speed.large_model import QUICK, QWEN3_8B
from benchmarks.gpu.speed.roofline import limits_of
from benchmarks.gpu.stage import Record, Setting

POOL_BYTES = {False: 4 << 30, True: 16 << 20}
TOKENS = {False: (128, 1024, 8192), True: (64, 256)}
REPEATS = 5
COLUMNS = ("transport", "tokens", "MB", "ms", "GB/s", "% of copy")


def blocks_model(setting: Setting) -> SmallModel:
    """Return a model with the large model's block shape and small matrices."""
    shape = QUICK if setting.is_quick else QWEN3_8B
    sizes = {name: shape[name] for name in ("num_hidden_layers", "num_key_value_heads", "head_dim")}
    return SmallModel("qwen3", sizes | {"num_attention_heads": shape["num_key_value_heads"]})


async def measure(setting: Setting, record: Record, transport: str) -> None:
    """Add a row for each length."""
    limits = limits_of(setting)
    model = saved(blocks_model(setting), setting.directory / "blocks")
    num_bytes = POOL_BYTES[setting.is_quick]
    with PrefillProcess(model, setting, transport, num_bytes) as prefill:
        engine = start_engine(model, setting, kv_cache_memory_bytes=num_bytes)
        reader = await Reader.connect(EngineSession(engine), setting, transport, prefill.description())
        try:
            for tokens in TOKENS[setting.is_quick]:
                num_blocks = tokens // engine.config.block_size
                moved = num_blocks * engine.layout.block_bytes
                seconds = median([await reader.seconds(num_blocks) for _ in range(REPEATS + 1)][1:])
                rate = moved / seconds
                share = 100 * 2 * rate / limits.bytes_per_s  # a copy is counted as read and written
                record.add_row(COLUMNS, transport, tokens, moved / 1e6, seconds * 1e3, rate / 1e9, share)
        finally:
            await reader.transport.close()
            engine.close()


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    for transport in transports_of(setting):
        record.attempt(transport, lambda transport=transport: asyncio.run(measure(setting, record, transport)))
