"""Baton's engine, stepped by its own thread."""

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import torch
from driver import NewTokens, Setting, serve

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.loop import EngineLoop
from baton.engine.outputs import StepOutput
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.settings.values import JsonText, parse_json


def engine_config(setting: Setting) -> EngineConfig:
    """Return the engine's defaults with the setting's values."""
    block_size = EngineConfig(model=setting.model, device="cpu").block_size
    kv_dtype = "int8" if setting.kv_cache == "int8" else "auto"
    layout = KVCacheLayout.of(read_model_config(Path(setting.model)), block_size, kv_dtype=kv_dtype)
    num_blocks = setting.num_kv_tokens // block_size + 2 * setting.max_num_seqs + 2  # with spare blocks
    return EngineConfig(
        model=setting.model,
        device="cpu",
        quantization="int8" if setting.weights == "int8" else None,
        kv_cache_memory_bytes=num_blocks * layout.block_bytes,
        kv_cache_dtype=kv_dtype,
        max_model_len=setting.max_model_len,
        enable_prefix_caching=setting.prefix_caching,
        num_threads=setting.num_threads,
        speculative_config=drafts_of(setting),
    )


def drafts_of(setting: Setting) -> JsonText | None:
    """Return the options of drafts from the prompt and the output; None: no drafts."""
    if not setting.num_drafts:
        return None
    return parse_json(json.dumps({"method": "ngram", "num_speculative_tokens": setting.num_drafts}))


class BatonEngine:
    """Owner of an engine and its thread."""

    version = "this tree"

    def __init__(self, setting: Setting) -> None:
        torch.set_num_threads(setting.num_threads)
        self._outputs: SimpleQueue[StepOutput | BaseException] = SimpleQueue()
        with ThreadPoolExecutor(1) as loader:  # as a worker does: the loader's OpenMP threads end with it
            engine = loader.submit(Engine, engine_config(setting)).result()
        self._loop = EngineLoop(engine, self._outputs.put, self._outputs.put)
        self._loop.start()

    def add(self, request: int, prompt: Sequence[int], num_output_tokens: int) -> None:
        """Add a request between two steps of the engine's thread."""
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=num_output_tokens)
        added = Request(RequestId(str(request)), list(prompt), len(prompt), sampling)
        self._loop.call(lambda engine: engine.add(added)).add_done_callback(self._report)

    def step(self) -> Iterable[NewTokens]:
        """Wait for the end of the next step."""
        output = self._outputs.get()
        if isinstance(output, BaseException):
            raise output
        for each in output.outputs:
            if each.error is not None:
                raise each.error
        return [
            NewTokens(int(each.request_id), [sampled.token_id for sampled in each.all_sampled])
            for each in output.outputs
            if each.all_sampled
        ]

    def _report(self, added: Future[None]) -> None:
        """Let `step` raise the error of a request that the engine refuses: it would wait for its tokens."""
        if (error := added.exception()) is not None:
            self._outputs.put(error)

    def close(self) -> None:
        """End the thread."""
        self._loop.stop()


if __name__ == "__main__":
    serve(BatonEngine)
