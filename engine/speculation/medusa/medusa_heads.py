"""Medusa heads in memory, and the hidden states that they read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.errors import EngineError
from baton.engine.execution.device import to_device_async
from baton.engine.kv.layout import torch_dtype
from baton.engine.layers.linear import Projection, load_linear
from baton.engine.models.causal_lm import CausalLM
from baton.engine.models.hidden_states import HiddenStates
from baton.engine.request import Request
from baton.engine.sampling.sampler import Sampler
from baton.engine.speculation.config import OPTION
from baton.engine.speculation.medusa.medusa_checkpoint import MedusaCheckpoint


@dataclass(frozen=True, slots=True)
class MedusaHead:
    """Residual blocks `x + silu(linear(x))` and an output layer."""

    blocks: Sequence[Projection]
    output: Projection

    def __call__(self, states: Tensor) -> Tensor:
        """Return the logits [num_rows, vocab] fp32 for hidden states [num_rows, hidden]."""
        for block in self.blocks:
            states = states + F.silu(block(states))
        return self.output(states).float()


class MedusaHeads:
    """Heads that are ready to draft. They are not divided among ranks: rank 0 has all of them.

    A step of the model leaves the final hidden states of its tokens in the slots of their KV. The state of the last
    computed token gives the token behind it, which the model samples; head `i` gives the one `i + 1` places further.
    """

    def __init__(self, heads: Sequence[MedusaHead], states: HiddenStates, sampler: Sampler, block_size: int) -> None:
        """states: of the model; sampler: of its vocabulary."""
        self._heads = heads
        self._states = states
        self._sampler = sampler
        self._block_size = block_size

    @property
    def num_heads(self) -> int:
        """Most tokens of a draft."""
        return len(self._heads)

    @staticmethod
    def can_draft(request: Request) -> bool:
        """Return whether the hidden state of the last computed token was kept."""
        return request.num_tokens - 2 >= request.num_without_states

    def states_of(self, requests: Sequence[Request]) -> Tensor:
        """Return the hidden state [num_requests, hidden] of each request's last computed token."""
        size = self._block_size
        places = [request.num_tokens - 2 for request in requests]
        slots = [
            request.block_table[place // size] * size + place % size
            for request, place in zip(requests, places, strict=True)
        ]
        return self._states.at(to_device_async(torch.tensor(slots), self._states.device))

    @torch.inference_mode()
    def sample(self, states: Tensor, requests: Sequence[Request], drafts: Sequence[Sequence[int]]) -> Sequence[int]:
        """Return a token that may follow those of each request and its drafts, of which all have equally many.

        states: see `states_of`. The tokens are sampled as the request's are, with the same noise.
        """
        logits = self._heads[len(drafts[0])](states)
        drafted = dict(enumerate(drafts)) if drafts[0] else {}
        token_ids: list[int] = self._sampler.draw(logits, requests, drafted=drafted).tolist()
        return token_ids


@dataclass(frozen=True, slots=True)
class MedusaWeights:
    """Medusa heads without memory for hidden states yet."""

    checkpoint: MedusaCheckpoint
    target: CausalLM
    heads: Sequence[MedusaHead]
    device: torch.device

    @classmethod
    def load(cls, checkpoint: MedusaCheckpoint, target: CausalLM, device: torch.device) -> Self:
        """Load the heads' weights. Raises InvalidCheckpoint or UnsupportedModel."""
        dtype, quantization = torch_dtype(checkpoint.target.dtype), checkpoint.engine.quantization
        try:
            weights = Weights(checkpoint.directory, dtype, device, None, quantization, None, checkpoint.prefixes)
            with torch.inference_mode():
                heads = [_load(weights, checkpoint, index) for index in range(checkpoint.num_heads)]
            weights.finish(lambda _: False)
            weights.close()
        except EngineError as error:
            raise type(error)(f"{OPTION}: the Medusa heads {checkpoint.directory}: {error}") from error
        return cls(checkpoint, target, heads, device)

    def with_blocks(self, num_blocks: int, eos_token_ids: frozenset[int]) -> MedusaHeads:
        """Return the heads with memory for the hidden states of as many blocks as the model has, which now keeps them.

        eos_token_ids: of the model, which are masked below a request's `min_tokens`.
        """
        config, size = self.checkpoint.target, self.checkpoint.engine.block_size
        dtype = torch_dtype(config.dtype)
        rows = torch.zeros(num_blocks * size, config.hidden_size, dtype=dtype, device=self.device)
        states = HiddenStates((), None, rows)
        self.target.hidden_states = states
        return MedusaHeads(self.heads, states, Sampler(config.vocab_size, eos_token_ids), size)


def _load(weights: Weights, checkpoint: MedusaCheckpoint, index: int) -> MedusaHead:
    hidden, prefix = checkpoint.target.hidden_size, f"model.blocks.{index}.layers"
    names = [f"{prefix}.{layer}" for layer in range(checkpoint.num_layers)]
    blocks = [load_linear(weights, name, hidden, hidden, bias=f"{name}.bias" in weights) for name in names]
    output = load_linear(weights, f"model.lm_heads.{index}", hidden, checkpoint.target.vocab_size)
    return MedusaHead(blocks, output)
