"""vLLM's CPU backend, its engine in this process. Its store is its own KV offloading (`--kv-offloading-size`)."""

from collections.abc import Iterable, Mapping, Sequence

import vllm
from driver import NewTokens, Setting, serve
from vllm import EngineArgs, LLMEngine, SamplingParams, TokensPrompt
from vllm.sampling_params import RequestOutputKind

BLOCK_SIZE = 128  # tokens; vLLM's default on CPUs
LONGEST_MATCH = 4  # tokens, as in the example of its documentation


class VllmEngine:
    """Owner of an engine with its defaults, apart from the setting's values."""

    version = f"vLLM {vllm.__version__}"

    def __init__(self, setting: Setting, store: Mapping[str, object] | None = None) -> None:
        """`store`: the engine's arguments for a store; None: for vLLM's own KV offloading."""
        num_blocks = setting.num_kv_tokens // BLOCK_SIZE + setting.max_num_seqs + 2
        arguments = EngineArgs(
            model=setting.model,
            dtype="bfloat16",
            max_model_len=setting.max_model_len,
            max_num_seqs=setting.max_num_seqs,
            num_gpu_blocks_override=num_blocks,
            kv_cache_memory_bytes=num_blocks * BLOCK_SIZE * kv_token_bytes(setting.model),
            enable_prefix_caching=setting.prefix_caching,
            skip_tokenizer_init=True,
            disable_log_stats=True,
            speculative_config=drafts_of(setting),
            **(own_store(setting) if store is None else store),
        )
        self._engine = LLMEngine.from_engine_args(arguments)

    def add(self, request: int, prompt: Sequence[int], num_output_tokens: int) -> None:
        """Add a request by its token ids, without detokenization."""
        params = SamplingParams(
            temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True, detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip
        self._engine.add_request(str(request), TokensPrompt(prompt_token_ids=list(prompt)), params)

    def step(self) -> Iterable[NewTokens]:
        """Run one step."""
        return [
            NewTokens(int(output.request_id), list(output.outputs[0].token_ids))
            for output in self._engine.step()
            if output.outputs and output.outputs[0].token_ids
        ]


def drafts_of(setting: Setting) -> dict[str, object] | None:
    """Return its options of drafts from the prompt and the output; None: no drafts."""
    if not setting.num_drafts:
        return None
    return {"method": "ngram", "num_speculative_tokens": setting.num_drafts, "prompt_lookup_max": LONGEST_MATCH}


def own_store(setting: Setting) -> dict[str, object]:
    """Return the engine's arguments for the setting's store, in host memory."""
    if not setting.kv_store:
        return {}
    return {"kv_offloading_size": setting.kv_store_bytes / 2**30, "kv_offloading_backend": "native"}


def kv_token_bytes(model: str) -> int:
    """Return the KV bytes of a token in all layers, in bf16."""
    config = vllm.config.ModelConfig(model=model, dtype="bfloat16", skip_tokenizer_init=True).hf_config
    return 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim


if __name__ == "__main__":
    serve(VllmEngine)
