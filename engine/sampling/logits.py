"""Logits processors, applied before sampling: grammar masks, bias, minimum length, penalties."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from baton.engine.execution.device import to_device_async
from baton.engine.grammar.masks import StepMasks
from baton.engine.request import Request
from baton.engine.sampling.params import SamplingParams
from baton.engine.speculation.drafted_rows import NO_DRAFTS, Drafted


@dataclass(frozen=True, slots=True)
class TokenEdits:
    """A request's bias and stop tokens, on the device of the logits."""

    biased_ids: Tensor  # [num_biased] int64
    biases: Tensor  # [num_biased], of the logits' dtype
    stop_ids: Tensor  # [num_stops] int64


class LogitsEditor:
    """Logits processors. Copies a request's bias and stop tokens to the device once, not in each step."""

    def __init__(self, eos_token_ids: frozenset[int]) -> None:
        self._eos_token_ids = eos_token_ids
        self._edits: WeakKeyDictionary[Request, TokenEdits] = WeakKeyDictionary()

    def edit(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        masks: StepMasks | None = None,
        drafted: Drafted = NO_DRAFTS,
    ) -> Tensor:
        """Return a copy of the logits with all requested changes, in vLLM's order; `logits` itself if there are none.

        logits: [num_rows, vocab]; row `i` belongs to `requests[i]`, as in `masks`, and follows the request's tokens and
        `drafted[i]`. Except for the masks, only the affected tokens are read and written. A token that a mask forbids
        stays at -inf whatever its bias.
        """
        num_outputs = [request.num_output_tokens + len(drafted.get(i, ())) for i, request in enumerate(requests)]
        biased = [i for i, request in enumerate(requests) if request.sampling.logit_bias]
        forbidding = [
            i
            for i, request in enumerate(requests)
            if num_outputs[i] < request.sampling.min_tokens
            and self._has_stops(request.sampling)
            and request.sampling.grammar is None  # its mask takes the minimum into account
        ]
        repeating = [i for i, request in enumerate(requests) if request.sampling.repetition_penalty != 1]
        penalised = [
            i
            for i, request in enumerate(requests)
            if (request.sampling.presence_penalty or request.sampling.frequency_penalty) and num_outputs[i]
        ]
        if not (biased or forbidding or repeating or penalised or masks is not None):
            return logits
        edited = logits.clone()
        if masks is not None:
            masks.apply(edited)
        if biased:
            edits = [self._token_edits(requests[row], edited) for row in biased]
            index = _index(biased, [each.biased_ids for each in edits])
            edited[index] += torch.cat([each.biases for each in edits])
        if forbidding:
            stop_ids = [self._token_edits(requests[row], edited).stop_ids for row in forbidding]
            edited[_index(forbidding, stop_ids)] = -torch.inf
        if repeating:
            _penalise_repetition(edited, requests, repeating, drafted)
        if penalised:
            _penalise_output(edited, requests, penalised, drafted)
        return edited

    def _has_stops(self, sampling: SamplingParams) -> bool:
        return bool(sampling.stop_token_ids or (self._eos_token_ids and not sampling.ignore_eos))

    def _token_edits(self, request: Request, logits: Tensor) -> TokenEdits:
        edits = self._edits.get(request)
        if edits is None:
            sampling = request.sampling
            stops = sampling.stop_token_ids if sampling.ignore_eos else sampling.stop_token_ids | self._eos_token_ids
            biases = torch.tensor(list(sampling.logit_bias.values()), dtype=logits.dtype)
            edits = self._edits[request] = TokenEdits(
                biased_ids=to_device_async(torch.tensor(list(sampling.logit_bias), dtype=torch.int64), logits.device),
                biases=to_device_async(biases, logits.device),
                stop_ids=to_device_async(torch.tensor(list(stops), dtype=torch.int64), logits.device),
            )
        return edits


def _index(rows: Sequence[int], token_ids: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return row and id of the tokens of several rows: two tensors of [num_tokens] int64, on the tokens' device."""
    device, counts = token_ids[0].device, [len(part) for part in token_ids]
    row_ids = to_device_async(torch.tensor(rows), device)
    repeats = to_device_async(torch.tensor(counts), device)
    return row_ids.repeat_interleave(repeats, output_size=sum(counts)), torch.cat(list(token_ids))


def _penalise_repetition(logits: Tensor, requests: Sequence[Request], rows: Sequence[int], drafted: Drafted) -> None:
    """Divide positive and multiply negative logits of all known tokens (Keskar et al. 2019, CTRL, section 4.1)."""
    row_ids, token_ids = _flatten(requests, rows, [0] * len(rows), drafted, logits.device)
    penalties = torch.tensor([request.sampling.repetition_penalty for request in requests], device=logits.device)
    penalty = penalties.to(logits.dtype)[row_ids]
    current = logits[row_ids, token_ids]
    # A token that occurs several times is written several times with the same value.
    logits[row_ids, token_ids] = torch.where(current > 0, current / penalty, current * penalty)


def _penalise_output(logits: Tensor, requests: Sequence[Request], rows: Sequence[int], drafted: Drafted) -> None:
    """Subtract from each output token the presence penalty once and the frequency penalty per occurrence."""
    starts = [requests[row].num_prompt_tokens for row in rows]
    row_ids, token_ids = _flatten(requests, rows, starts, drafted, logits.device)
    sampling = [request.sampling for request in requests]
    presence = torch.tensor([s.presence_penalty for s in sampling], dtype=logits.dtype, device=logits.device)
    frequency = torch.tensor([s.frequency_penalty for s in sampling], dtype=logits.dtype, device=logits.device)
    counts = torch.zeros_like(logits)
    counts.index_put_((row_ids, token_ids), logits.new_ones(()), accumulate=True)
    count = counts[row_ids, token_ids]
    logits[row_ids, token_ids] -= presence[row_ids] + frequency[row_ids] * count


def _flatten(
    requests: Sequence[Request],
    rows: Sequence[int],
    starts: Sequence[int],
    drafted: Drafted,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Return row and token id of each known or drafted token from `starts` on: two tensors of [num_tokens] int64."""
    known: dict[Request, array[int]] = {}  # a request with drafts has several rows
    for row, start in zip(rows, starts, strict=True):
        if (request := requests[row]) not in known:
            known[request] = array("q", request.token_ids[start:])
    tokens = [known[requests[row]] + array("q", drafted.get(row, ())) for row in rows]
    row_ids = np.repeat(np.array(rows, dtype=np.int64), [len(part) for part in tokens])
    token_ids = np.concatenate([np.frombuffer(part, dtype=np.int64) for part in tokens])
    return torch.from_numpy(row_ids).to(device), torch.from_numpy(token_ids).to(device)
