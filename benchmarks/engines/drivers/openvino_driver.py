"""OpenVINO GenAI's continuous batching."""

from collections.abc import Iterable, Sequence

import numpy as np
import openvino
import openvino_genai
from driver import NewTokens, Setting, serve

BLOCK_SIZE = 32  # tokens; fixed by its CPU plugin
KV_CACHE_PRECISION = {"bf16": "bf16", "int8": "u8"}


class OpenVinoEngine:
    """Owner of a pipeline."""

    version = f"OpenVINO GenAI {openvino_genai.__version__}"

    def __init__(self, setting: Setting) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.num_kv_blocks = setting.num_kv_tokens // BLOCK_SIZE + setting.max_num_seqs + 2
        scheduler.max_num_seqs = setting.max_num_seqs
        scheduler.enable_prefix_caching = setting.prefix_caching
        properties = {
            "INFERENCE_NUM_THREADS": setting.num_threads,
            "INFERENCE_PRECISION_HINT": "bf16",
            "KV_CACHE_PRECISION": KV_CACHE_PRECISION[setting.kv_cache],
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(setting.model, scheduler, "CPU", properties)
        self._handles: dict[int, openvino_genai.GenerationHandle] = {}

    def add(self, request: int, prompt: Sequence[int], num_output_tokens: int) -> None:
        """Add a request by its token ids."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = num_output_tokens
        config.ignore_eos = True
        config.do_sample = False
        tokens = openvino.Tensor(np.array([prompt], dtype=np.int64))
        self._handles[request] = self._pipeline.add_request(request, tokens, config)

    def step(self) -> Iterable[NewTokens]:
        """Run one step and collect each request's tokens."""
        self._pipeline.step()
        new = []
        for request, handle in list(self._handles.items()):
            if handle.can_read():
                new += [NewTokens(request, list(output.generated_ids)) for output in handle.read().values()]
            if handle.get_status() == openvino_genai.GenerationStatus.FINISHED:
                del self._handles[request]
        return new


if __name__ == "__main__":
    serve(OpenVinoEngine)
