"""Blocks of KV that are pinned, copied to stores in host memory and on disk, evicted and fetched again.

Copies are made by other threads while the engine decodes other requests, as in a worker.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.engine import Engine
from baton.engine.kv.block_hash import BlockHash, hash_blocks
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.kv.prefix_pins import PinKey, PinShare
from baton.engine.scheduling.schedule import Received
from baton.kvtransfer.store.factory import open_host_store, open_store
from baton.kvtransfer.store.pool_blocks import PoolBlocks, rows_of
from baton.kvtransfer.store.store import KVStore
from baton.kvtransfer.store.stored_read import StoredRead
from benchmarks.gpu.engine_session import EngineSession, greedy, random_prompts, start_engine
from benchmarks.gpu.numerics.answers import compare_answers
from benchmarks.gpu.small_models import SMALL_MODELS, SmallModel, saved
from benchmarks.gpu.stage import Record, Setting

CASES = (("qwen3", "auto"), ("deepseek-v3", "auto"), ("qwen3", "fp8"))
BLOCK_SIZE = 16
NUM_STORED = 10  # blocks of the prompt
PROMPT_LEN = NUM_STORED * BLOCK_SIZE + 3
NUM_TOKENS = 12
POOL_BLOCKS = 48
FLOOD_LENS = (200,) * 6  # prompts that need more blocks than the pool has
BUSY_LENS = (10, 3, 17, 30)
NUM_COPIES = 8  # of all blocks, next to decodes
STORE_BYTES = 1 << 30
PIN = PinKey("check", "prefix")


@dataclass(slots=True)
class StoredPrompt:
    """A prompt whose blocks are pinned, stored and fetched in an engine with few blocks."""

    session: EngineSession
    prompt: list[int]
    num_runs: int = 0
    hashes: Sequence[BlockHash] = field(init=False)
    pool: PoolBlocks = field(init=False)

    def __post_init__(self) -> None:
        self.hashes = hash_blocks(self.prompt, BLOCK_SIZE)[:NUM_STORED]
        self.pool = PoolBlocks(self.engine.pool)

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self.session.engine

    @property
    def cached(self) -> Sequence[int]:
        """The prompt's blocks in the pool, from the first on."""
        return self.engine.blocks.cache.match(self.hashes)

    def bits(self, blocks: Sequence[int]) -> Tensor:
        """Return what blocks hold, uint8 [num_blocks, block_bytes] on the CPU, once the device has computed it."""
        return self.engine.pool.reshape(-1).view(torch.uint8).view(len(self.engine.pool), -1)[list(blocks)].cpu()

    def name(self) -> str:
        """Return a new request's name."""
        self.num_runs += 1
        return str(self.num_runs)

    def flood(self) -> None:
        """Run other prompts, which evict whatever is not pinned."""
        for prompt in random_prompts(FLOOD_LENS, self.engine.model_config.vocab_size, seed=100 + self.num_runs):
            self.session.add(f"flood {self.name()}", prompt, greedy(1))
            self.session.finish()

    def while_decoding(self, call: Callable[[], object]) -> None:
        """Run a call in a thread while the engine decodes other requests."""
        for prompt in random_prompts(BUSY_LENS, self.engine.model_config.vocab_size, seed=200 + self.num_runs):
            self.session.add(f"busy {self.name()}", prompt, greedy(30))
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(call)
            while not running.done():
                self.session.run_on(2)
            running.result()

    def answer(self) -> str:
        """Run the prompt, and return the request's name."""
        name = self.name()
        self.session.add(name, self.prompt, greedy(NUM_TOKENS, logprobs=2))
        self.session.finish()
        return name

    def fetched_answer(self, store: KVStore, copies: Tensor) -> tuple[str, int]:
        """Run the prompt with its blocks from a store; return the request's name, and how many of them are `copies`."""
        name = self.name()
        asked = self.session.add(name, self.prompt, greedy(NUM_TOKENS, logprobs=2), receives_kv=True)
        schedule = self.session.step()
        assert schedule.receiving == [asked], "the pool is too small"
        first = asked.num_computed_tokens // BLOCK_SIZE
        blocks = asked.block_table[first:NUM_STORED]
        read = StoredRead(self.pool, [store] * len(blocks), self.hashes[first:], blocks)
        self.while_decoding(read.run)
        same = (self.bits(blocks) == copies[first:]).all(1)
        self.engine.end_receive(asked.request_id, Received((first + read.abandon()) * BLOCK_SIZE))
        self.session.finish()
        return name, int(same.sum())


def start(model: SmallModel, directory: Path, setting: Setting, kv_dtype: str) -> Engine:
    """Start an engine with few blocks."""
    config = read_model_config(directory, setting.dtype_name, on_cpu=setting.device.type == "cpu")
    block_bytes = KVCacheLayout.of(config, BLOCK_SIZE, kv_dtype=kv_dtype).block_bytes
    limits = {"kv_cache_memory_bytes": POOL_BLOCKS * block_bytes, "block_size": BLOCK_SIZE, "max_num_seqs": 8}
    return start_engine(directory, setting, kv_cache_dtype=kv_dtype, **limits)


def check_copies(record: Record, case: str, stored: StoredPrompt) -> Tensor:
    """Copy the pinned blocks out next to decodes, and compare the copies; returns them, [num_blocks, block_bytes]."""
    blocks = stored.cached
    buffers = [stored.pool.buffer(NUM_STORED) for _ in range(NUM_COPIES)]

    def copy() -> None:
        for buffer in buffers:
            stored.pool.copy_out(blocks, buffer)

    stored.while_decoding(copy)
    stored.session.finish()
    expected = stored.bits(blocks)
    same = sum(torch.equal(buffer, expected) for buffer in buffers)
    record.find(f"{case}: copies out", same == NUM_COPIES, f"{same} of {NUM_COPIES} copies have the pool's bits")
    return expected


def check_stores(record: Record, setting: Setting, model: SmallModel, kv_dtype: str) -> None:
    """Pin, copy, evict and fetch the blocks of a prompt; its tokens stay the same."""
    case = f"{model.architecture}, KV {kv_dtype}"
    engine = start(model, saved(model, setting.directory), setting, kv_dtype)
    prompt = random_prompts([PROMPT_LEN], engine.model_config.vocab_size)[0]
    stored = StoredPrompt(EngineSession(engine), prompt)
    expected = stored.answer()
    pin = engine.blocks.prefix_pins.hold(PIN, stored.hashes, 3600.0, PinShare())
    stored.flood()
    num_held = len(stored.cached)
    record.find(f"{case}: pin", pin is not None and num_held == NUM_STORED, f"{num_held} blocks are held")
    names = {"pinned": stored.answer()}
    copies = check_copies(record, case, stored)
    with TemporaryDirectory(dir=setting.directory) as new:
        stores = open_host_store(engine.fingerprint, STORE_BYTES), open_store(new, engine.fingerprint, STORE_BYTES)
        for store in stores:
            with closing(store):
                for block_hash, row in zip(stored.hashes, rows_of(copies), strict=True):
                    store.write(block_hash, row.data)
                engine.blocks.prefix_pins.delete(PIN)
                stored.flood()
                num_left = len(stored.cached)
                names[store.name], same = stored.fetched_answer(store, copies)
                is_right = not num_left and same == NUM_STORED
                detail = f"{same} of {NUM_STORED} fetched blocks have the stored bits; {num_left} had not been evicted"
                record.find(f"{case}: fetch from {store.name}", is_right, detail)
    answers = stored.session.answers
    for name, request in names.items():
        compare_answers(record, f"{case}: {name}", {case: answers[request]}, {case: answers[expected]})
    engine.close()


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    torch.manual_seed(0)
    models = {model.architecture: model for model in SMALL_MODELS}
    for name, kv_dtype in CASES[: 1 if setting.is_quick else None]:
        record.attempt(f"{name}, {kv_dtype}", partial(check_stores, record, setting, models[name], kv_dtype))
