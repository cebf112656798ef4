"""transformers' continuous batching with the same weights on the same device."""

from transformers import AutoModelForCausalLM, GenerationConfig

from benchmarks.gpu.speed.large_model import ensure_large_model
from benchmarks.gpu.speed.peer import measure_peer
from benchmarks.gpu.stage import Record, Setting
from benchmarks.transformers_peer import batching


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    directory = ensure_large_model(setting).directory
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=setting.dtype, attn_implementation="sdpa")
    model = model.to(setting.device).eval()

    def generate(prompts: list[list[int]], num_tokens: int) -> None:
        outputs = model.generate_batch(
            inputs=prompts,
            generation_config=GenerationConfig(
                max_new_tokens=num_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0, use_cache=True
            ),
            continuous_batching_config=batching(prompts, num_tokens),
            progress_bar=False,
        )
        counts = {len(output.generated_tokens) for output in outputs.values()}
        if counts != {num_tokens}:
            raise RuntimeError(f"requested {num_tokens} tokens each, transformers generated {sorted(counts)}")

    measure_peer(record, setting, generate, model.config.vocab_size)
