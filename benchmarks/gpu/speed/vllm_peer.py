"""vLLM with the same weights on the same device, if it is installed."""

from importlib.util import find_spec

from benchmarks.gpu.speed.large_model import ensure_large_model
from benchmarks.gpu.speed.peer import CONTEXT, LONG, measure_peer
from benchmarks.gpu.stage import Record, Setting


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    if find_spec("vllm") is None:
        record.note("vLLM is not installed here and was not measured; its wheels are too large for the bundle")
        return
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(ensure_large_model(setting).directory),
        skip_tokenizer_init=True,
        dtype=setting.dtype_name,
        max_model_len=CONTEXT[setting.is_quick] + 2 * LONG,
        enable_prefix_caching=False,
    )

    def generate(prompts: list[list[int]], num_tokens: int) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        if any(len(output.outputs[0].token_ids) != num_tokens for output in outputs):
            raise RuntimeError(f"vLLM did not generate {num_tokens} tokens each")

    measure_peer(record, setting, generate, engine.llm_engine.model_config.get_vocab_size())
