"""Sampler: the next token of each request, from the model's logits."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from baton.engine.execution.device import to_device_async
from baton.engine.grammar.masks import StepMasks
from baton.engine.outputs import PositionLogprobs, SampledToken, TokenLogprob
from baton.engine.request import Request
from baton.engine.sampling.logits import LogitsEditor
from baton.engine.sampling.noise import row_keys
from baton.engine.sampling.params import GREEDY_BELOW, SamplingParams
from baton.engine.sampling.random_choice import RandomRows, draw_truncated, draw_whole
from baton.engine.sampling.truncation import find_candidates
from baton.engine.speculation.drafted_rows import NO_DRAFTS, Drafted


def position_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> list[PositionLogprobs]:
    """Return the log-probabilities of the token at each position and of the `num_top` most probable tokens.

    logits: [num_positions, vocab] float32, unmodified; token_ids: [num_positions] int64, on the same device. Equally
    probable tokens share the better rank.
    """
    log_total = logits.logsumexp(-1, keepdim=True)
    chosen = logits.gather(1, token_ids[:, None])
    ranks = (logits > chosen).count_nonzero(-1) + 1
    top = find_candidates(logits, min(num_top, logits.shape[1]))
    top_ranks = torch.searchsorted(-top.logits, -top.logits) + 1
    columns = zip(
        token_ids.tolist(),
        (chosen - log_total)[:, 0].tolist(),
        ranks.tolist(),
        top.token_ids.tolist(),
        (top.logits - log_total).tolist(),
        top_ranks.tolist(),
        strict=True,
    )
    return [
        PositionLogprobs(
            TokenLogprob(token_id, logprob, rank),
            tuple(TokenLogprob(*candidate) for candidate in zip(ids, logprobs, candidate_ranks, strict=True)),
        )
        for token_id, logprob, rank, ids, logprobs, candidate_ranks in columns
    ]


ARGMAX_BLOCK = 64  # tokens
CHUNK_ELEMENTS = 1 << 21  # logits processed at a time, so that intermediates stay small


@dataclass(frozen=True, slots=True)
class Sampler:
    """Samples tokens according to the requests' options alone, so that any worker samples the same tokens."""

    vocab_size: int
    eos_token_ids: frozenset[int]
    _editor: LogitsEditor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not all(0 <= token_id < self.vocab_size for token_id in self.eos_token_ids):
            raise ValueError(f"eos_token_ids {sorted(self.eos_token_ids)} must be below {self.vocab_size}")
        object.__setattr__(self, "_editor", LogitsEditor(self.eos_token_ids))

    def sample(self, logits: Tensor, requests: Sequence[Request]) -> list[SampledToken]:
        """Sample a token for each request, at position `len(request.token_ids)`.

        logits: [num_rows, vocab] float32 on any device, not modified; row `i` belongs to `requests[i]`. In vLLM's
        order: grammar mask (see `draw`), logit bias, minimum length, penalties, temperature, min-p, top-k, top-p,
        Gumbel-max. Log-probabilities are those of the unmodified logits. Raises ValueError if the shapes do not match.
        """
        token_ids = self.draw(logits, requests)
        return self.described(token_ids.tolist(), self.logprobs(logits, token_ids, requests))

    def draw(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        num_unknown: int = 0,
        masks: StepMasks | None = None,
        drafted: Drafted = NO_DRAFTS,
    ) -> Tensor:
        """Sample a token for each request, [num_rows] int64 on the logits' device; see `sample`.

        num_unknown: number of preceding tokens of each request that the host does not know yet. masks: of the requests'
        grammars. drafted: by row, tokens that precede its token and that the request does not have yet. Does not wait
        for the device, unless requests edit their logits or have top-k or top-p.
        """
        if logits.shape != (len(requests), self.vocab_size):
            raise ValueError(f"logits are {list(logits.shape)} for {len(requests)} requests x {self.vocab_size} tokens")
        if not requests:
            return torch.empty(0, dtype=torch.int64, device=logits.device)
        positions = [
            request.num_tokens + num_unknown + len(drafted.get(row, ())) for row, request in enumerate(requests)
        ]
        return self._choose(self._editor.edit(logits, requests, masks, drafted), requests, positions)

    @staticmethod
    def described(token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs | None]) -> list[SampledToken]:
        """Pair tokens with their log-probabilities."""
        return [SampledToken(token, part) for token, part in zip(token_ids, logprobs, strict=True)]

    def prompt_logprobs(
        self, logits: Tensor, target_token_ids: Sequence[int] | Tensor, num_top: int
    ) -> list[PositionLogprobs]:
        """Return the log-probabilities of prompt tokens: row `i` of the logits predicts `target_token_ids[i]`.

        logits: [num_positions, vocab] float32. Raises ValueError if the shapes do not match.
        """
        targets = torch.as_tensor(target_token_ids, dtype=torch.int64, device=logits.device)
        if logits.shape != (len(targets), self.vocab_size):
            raise ValueError(f"logits are {list(logits.shape)} for {len(targets)} tokens of {self.vocab_size}")
        return position_logprobs(logits, targets, num_top)

    def _choose(self, logits: Tensor, requests: Sequence[Request], positions: Sequence[int]) -> Tensor:
        greedy, whole, truncated = [], [], []
        for row, request in enumerate(requests):
            sampling = request.sampling
            if sampling.temperature < GREEDY_BELOW:
                greedy.append(row)
            elif 0 < sampling.top_k < self.vocab_size or sampling.top_p < 1:
                truncated.append(row)
            else:
                whole.append(row)
        if len(greedy) == len(requests):
            return _argmax(logits)
        token_ids = torch.empty(len(requests), dtype=torch.int64, device=logits.device)
        if greedy:
            token_ids[_on(greedy, logits)] = _argmax(_take(logits, greedy))
        for chunk in self._chunks(whole):
            drawn = self._random_rows(logits, requests, chunk, positions)
            token_ids[_on(chunk, logits)] = draw_whole(drawn.logits, drawn.peak, drawn.keys)
        for chunk in self._chunks(truncated):
            token_ids[_on(chunk, logits)] = draw_truncated(self._random_rows(logits, requests, chunk, positions))
        return token_ids

    def _chunks(self, rows: Sequence[int]) -> Iterator[Sequence[int]]:
        size = max(1, CHUNK_ELEMENTS // self.vocab_size)
        return (rows[start : start + size] for start in range(0, len(rows), size))

    def _random_rows(
        self, logits: Tensor, requests: Sequence[Request], rows: Sequence[int], positions: Sequence[int]
    ) -> RandomRows:
        sampling = [requests[row].sampling for row in rows]
        temperature = _on([params.temperature for params in sampling], logits)
        scaled = _take(logits, rows) / temperature[:, None]
        peak = scaled.amax(-1, keepdim=True).clamp_(min=torch.finfo(scaled.dtype).min)  # finite if all are -inf
        _apply_min_p(scaled, peak, sampling)
        top_k = [min(params.top_k or self.vocab_size, self.vocab_size) for params in sampling]
        return RandomRows(
            logits=scaled,
            keys=row_keys([params.seed for params in sampling], [positions[row] for row in rows], logits.device),
            peak=peak,
            top_k=_on(top_k, logits)[:, None],
            top_p=_on([params.top_p for params in sampling], logits, torch.float64)[:, None],
        )

    def logprobs(
        self, logits: Tensor, token_ids: Tensor, requests: Sequence[Request]
    ) -> Sequence[PositionLogprobs | None]:
        """Return the log-probabilities of each request's token in the unmodified logits; None if not requested."""
        counts = [request.sampling.logprobs for request in requests]
        rows = [row for row, count in enumerate(counts) if count is not None]
        found: list[PositionLogprobs | None] = [None] * len(requests)
        if rows:
            most = max(count for count in counts if count is not None)
            parts = position_logprobs(_take(logits, rows), token_ids[rows], most)
            for row, part in zip(rows, parts, strict=True):
                found[row] = PositionLogprobs(part.chosen, part.top[: counts[row]])
        return found


def _apply_min_p(scaled: Tensor, peak: Tensor, sampling: Sequence[SamplingParams]) -> None:
    """Exclude tokens whose probability is below min-p times the largest one."""
    if any(params.min_p > 0 for params in sampling):
        distances = [math.log(params.min_p) if params.min_p > 0 else -math.inf for params in sampling]
        floor = peak + _on(distances, scaled)[:, None]
        scaled.masked_fill_(scaled < floor, -torch.inf)


def _take(logits: Tensor, rows: Sequence[int]) -> Tensor:
    """Select rows, which must be in ascending order; without a copy if they are adjacent."""
    is_adjacent = rows[-1] - rows[0] == len(rows) - 1
    return logits[rows[0] : rows[-1] + 1] if is_adjacent else logits[_on(rows, logits)]


def _on(numbers: Sequence[float], logits: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Copy numbers to the logits' device asynchronously."""
    return to_device_async(torch.tensor(numbers, dtype=dtype), logits.device)


def _argmax(logits: Tensor) -> Tensor:
    """Return the first index of each row's largest logit, [num_rows] int64; by blocks, much faster on a CPU."""
    if logits.shape[1] % ARGMAX_BLOCK:
        return logits.max(-1).indices
    blocks = logits.view(len(logits), -1, ARGMAX_BLOCK)
    block = blocks.amax(-1).max(-1).indices
    inside = blocks[torch.arange(len(blocks), device=block.device), block].max(-1).indices
    return block * ARGMAX_BLOCK + inside
