"""Reference outputs from transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def load_oracle(checkpoint: Path) -> Any:
    """Return transformers' model of a checkpoint, in fp32."""
    return AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float32).eval()


@torch.inference_mode()
def greedy(model: Any, prompt: Sequence[int], count: int, draft: Sequence[int] = ()) -> list[int]:
    """Return the greedy continuation by transformers' `model`; EOS does not end it.

    `draft`: a guess at it, such as the output under test. One pass verifies all of it, and only what follows its first
    wrong token is computed token by token.
    """
    tokens = _verified(model, prompt, draft[:count])
    if len(tokens) == count:
        return tokens
    ids = torch.tensor([[*prompt, *tokens]])
    output = model(ids, use_cache=True)
    cache = "cache_params" if "cache_params" in output else "past_key_values"  # Mamba-2's, or all others'
    tokens.append(int(output.logits[0, -1].argmax()))
    while len(tokens) < count:
        position = torch.tensor([[len(prompt) + len(tokens) - 1]])  # Bamba's default is 0
        cached = {cache: output[cache], "position_ids": position}
        output = model(torch.tensor([tokens[-1:]]), use_cache=True, **cached)
        tokens.append(int(output.logits[0, -1].argmax()))
    return tokens


def _verified(model: Any, prompt: Sequence[int], draft: Sequence[int]) -> list[int]:
    """Return the leading tokens of a draft that are greedy ones."""
    if not draft:
        return []
    logits = model(torch.tensor([[*prompt, *draft[:-1]]])).logits[0, len(prompt) - 1 :]
    best = logits.argmax(-1).tolist()
    num_right = next((place for place, pair in enumerate(zip(best, draft, strict=True)) if pair[0] != pair[1]), None)
    return best[:num_right]


class Oracle:
    """A checkpoint in transformers, in fp32."""

    def __init__(self, checkpoint: Path) -> None:
        self._model = load_oracle(checkpoint)

    def greedy(self, prompt: list[int], count: int, draft: Sequence[int] = ()) -> list[int]:
        """Return the greedy continuation; EOS does not end it. `draft`: a guess at it, which saves time."""
        return greedy(self._model, prompt, count, draft)

    @torch.inference_mode()
    def logprobs(self, tokens: list[int]) -> list[float]:
        """Return the logprob of every token but the first, given the previous ones."""
        logits = self._model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        return logits.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()
