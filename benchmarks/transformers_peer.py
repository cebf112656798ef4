"""transformers' continuous batching, in a process of its own; one JSON line in for each wave, one out."""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig


def main() -> None:
    """Arguments: checkpoint, threads. A line is {"prompts": [[...]], "num_output_tokens": n}."""
    checkpoint, num_threads = sys.argv[1:]
    torch.set_num_threads(int(num_threads))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="auto", attn_implementation="sdpa").eval()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        wave = json.loads(line)
        num_output_tokens = wave["num_output_tokens"]
        config = GenerationConfig(
            max_new_tokens=num_output_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0, use_cache=True
        )
        started_s = time.perf_counter()
        outputs = model.generate_batch(
            inputs=wave["prompts"],
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(),
            progress_bar=False,
        )
        elapsed_s = time.perf_counter() - started_s
        counts = [len(output.generated_tokens) for output in outputs.values()]
        print(json.dumps({"elapsed_s": elapsed_s, "num_output_tokens": counts}), flush=True)


if __name__ == "__main__":
    main()
