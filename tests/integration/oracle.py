"""Reference outputs from transformers."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


class Oracle:
    """A checkpoint in transformers, in fp32."""

    def __init__(self, checkpoint: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    @torch.inference_mode()
    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """Return the greedy continuation, computed token by token; EOS does not end it."""
        ids = torch.tensor([prompt])
        output = self._model(ids, use_cache=True)
        cache = "cache_params" if "cache_params" in output else "past_key_values"  # Mamba-2's, or all others'
        tokens = [int(output.logits[0, -1].argmax())]
        while len(tokens) < count:
            position = torch.tensor([[len(prompt) + len(tokens) - 1]])  # Bamba's default is 0
            cached = {cache: output[cache], "position_ids": position}
            output = self._model(torch.tensor([tokens[-1:]]), use_cache=True, **cached)
            tokens.append(int(output.logits[0, -1].argmax()))
        return tokens

    @torch.inference_mode()
    def logprobs(self, tokens: list[int]) -> list[float]:
        """Return the logprob of every token but the first, given the previous ones."""
        logits = self._model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        return logits.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()
