"""Logits processors, applied before sampling: bias, minimum length, penalties."""

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from baton.engine.request import Request


def edit_logits(logits: Tensor, requests: Sequence[Request], eos_token_ids: frozenset[int]) -> Tensor:
    """Return a copy of the logits with all requested changes, in vLLM's order; `logits` itself if there are none.

    logits: [num_rows, vocab]; row `i` belongs to `requests[i]`. Only the affected tokens are read and written.
    """
    biased = [i for i, request in enumerate(requests) if request.sampling.logit_bias]
    forbidden = [
        (i, token_id)
        for i, request in enumerate(requests)
        if request.num_output_tokens < request.sampling.min_tokens
        for token_id in _stop_token_ids(request, eos_token_ids)
    ]
    repeating = [i for i, request in enumerate(requests) if request.sampling.repetition_penalty != 1]
    penalised = [
        i
        for i, request in enumerate(requests)
        if (request.sampling.presence_penalty or request.sampling.frequency_penalty) and request.num_output_tokens
    ]
    if not (biased or forbidden or repeating or penalised):
        return logits
    edited = logits.clone()
    if biased:
        _add_bias(edited, requests, biased)
    if forbidden:
        rows, token_ids = torch.tensor(forbidden, device=edited.device).unbind(1)
        edited[rows, token_ids] = -torch.inf
    if repeating:
        _penalise_repetition(edited, requests, repeating)
    if penalised:
        _penalise_output(edited, requests, penalised)
    return edited


def _stop_token_ids(request: Request, eos_token_ids: frozenset[int]) -> frozenset[int]:
    stops = frozenset(request.sampling.stop_token_ids)
    return stops if request.sampling.ignore_eos else stops | eos_token_ids


def _add_bias(logits: Tensor, requests: Sequence[Request], rows: Sequence[int]) -> None:
    entries = [(row, token_id, bias) for row in rows for token_id, bias in requests[row].sampling.logit_bias.items()]
    row_ids, token_ids, biases = zip(*entries, strict=True)
    index = (torch.tensor(row_ids, device=logits.device), torch.tensor(token_ids, device=logits.device))
    logits[index] += torch.tensor(biases, dtype=logits.dtype, device=logits.device)


def _penalise_repetition(logits: Tensor, requests: Sequence[Request], rows: Sequence[int]) -> None:
    """Divide positive and multiply negative logits of all known tokens (Keskar et al. 2019, CTRL, section 4.1)."""
    row_ids, token_ids = _flatten(requests, rows, [0] * len(rows), logits.device)
    penalties = torch.tensor([request.sampling.repetition_penalty for request in requests], device=logits.device)
    penalty = penalties.to(logits.dtype)[row_ids]
    current = logits[row_ids, token_ids]
    # A token that occurs several times is written several times with the same value.
    logits[row_ids, token_ids] = torch.where(current > 0, current / penalty, current * penalty)


def _penalise_output(logits: Tensor, requests: Sequence[Request], rows: Sequence[int]) -> None:
    """Subtract from each output token the presence penalty once and the frequency penalty per occurrence."""
    starts = [requests[row].num_prompt_tokens for row in rows]
    row_ids, token_ids = _flatten(requests, rows, starts, logits.device)
    sampling = [request.sampling for request in requests]
    presence = torch.tensor([s.presence_penalty for s in sampling], dtype=logits.dtype, device=logits.device)
    frequency = torch.tensor([s.frequency_penalty for s in sampling], dtype=logits.dtype, device=logits.device)
    counts = torch.zeros_like(logits)
    counts.index_put_((row_ids, token_ids), logits.new_ones(()), accumulate=True)
    count = counts[row_ids, token_ids]
    logits[row_ids, token_ids] -= presence[row_ids] + frequency[row_ids] * count


def _flatten(
    requests: Sequence[Request], rows: Sequence[int], starts: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return row and token id of each known token from `starts` on: two tensors of [num_tokens] int64."""
    tokens = [array("q", requests[row].token_ids[start:]) for row, start in zip(rows, starts, strict=True)]
    row_ids = np.repeat(np.array(rows, dtype=np.int64), [len(part) for part in tokens])
    token_ids = np.concatenate([np.frombuffer(part, dtype=np.int64) for part in tokens])
    return torch.from_numpy(row_ids).to(device), torch.from_numpy(token_ids).to(device)
