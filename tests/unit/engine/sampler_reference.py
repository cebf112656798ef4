"""A sampler written plainly: one row at a time, numpy, sorting, sums in float64, Python integers for the noise.

Logits stay float32, since the kept tokens depend on exact comparisons.
"""

import math

import numpy as np

from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams

MASK = (1 << 64) - 1


def make_request(prompt: list[int] | None = None, output: list[int] | None = None, /, **options: object) -> Request:
    """Make a request; options: fields of SamplingParams by name."""
    prompt, output = prompt or [0], output or []
    params = SamplingParams(**{"max_tokens": 1 << 20, **options})  # type: ignore[arg-type]  # names are the options'
    return Request(RequestId("request"), prompt + output, len(prompt), params)


def splitmix(bits: int) -> int:
    """SplitMix64's output function."""
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


def gumbel(seed: int, position: int, counter: int) -> float:
    """One Gumbel number."""
    key = splitmix(splitmix(seed) ^ position)
    bits = splitmix((key + (counter + 1) * 0x9E3779B97F4A7C15) & MASK)
    return -math.log(-math.log(((bits >> 12) + 0.5) / 2**52))


def edited(logits: np.ndarray, request: Request, eos: frozenset[int]) -> np.ndarray:
    """Logits after bias, minimum length and penalties."""
    params, row = request.sampling, logits.copy()
    output = request.token_ids[request.num_prompt_tokens :]
    for token, bias in params.logit_bias.items():
        row[token] += bias
    if len(output) < params.min_tokens:
        for token in {*params.stop_token_ids, *(() if params.ignore_eos else eos)}:
            row[token] = -np.inf
    for token in set(request.token_ids):
        penalty = np.float32(params.repetition_penalty)
        row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
    for token in set(output):
        row[token] -= np.float32(params.presence_penalty + params.frequency_penalty * output.count(token))
    return row


def survivors(scaled: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, int]:
    """Return which tokens may be drawn, and how many tokens top-k alone would keep."""
    kept = np.isfinite(scaled)
    if params.min_p > 0:
        kept &= scaled >= scaled.max() + np.float32(math.log(params.min_p))
    if 0 < params.top_k < kept.sum():
        kept &= scaled >= np.sort(scaled[kept])[-params.top_k]
    num_after_top_k = int(kept.sum())
    if params.top_p < 1:
        weights = np.where(kept, np.exp(scaled.astype(np.float64) - scaled.max()), 0)
        total = weights.sum()
        ordered = np.sort(scaled[kept])[::-1]
        above = np.array([weights[scaled > value].sum() for value in ordered])
        kept &= scaled >= ordered[above < params.top_p * total].min()
    return kept, num_after_top_k


def probabilities(logits: np.ndarray, request: Request, eos: frozenset[int] = frozenset()) -> np.ndarray:
    """Return the distribution that the request's options specify."""
    scaled = edited(logits, request, eos) / np.float32(request.sampling.temperature)
    kept, _ = survivors(scaled, request.sampling)
    weights = np.where(kept, np.exp(scaled.astype(np.float64) - scaled[kept].max()), 0)
    return np.asarray(weights / weights.sum())


def choose(logits: np.ndarray, request: Request, eos: frozenset[int] = frozenset()) -> int:
    """Return the token that the sampler must choose."""
    params, row = request.sampling, edited(logits, request, eos)
    if params.temperature < 1e-5:
        return int(np.argmax(row))
    scaled = row / np.float32(params.temperature)
    kept, num_after_top_k = survivors(scaled, params)
    noise = [gumbel(params.seed, request.num_tokens, token) for token in range(len(row))]
    scores = np.where(kept, scaled.astype(np.float64) + np.array(noise), -np.inf)
    is_truncated = 0 < params.top_k < len(row) or params.top_p < 1
    limit = num_after_top_k if 0 < params.top_k < len(row) else kept.sum()
    if is_truncated and (len(row) <= 64 or limit < 64 or np.isfinite(scaled).sum() < 64):
        return int(np.argmax(scores))
    blocks = []
    for start in range(0, len(row), 128):
        inside = scaled[start : start + 128][kept[start : start + 128]].astype(np.float64)
        mass = np.log(np.exp(inside - scaled.max()).sum()) if len(inside) else -np.inf
        blocks.append(mass + gumbel(params.seed, request.num_tokens, 2**32 + start // 128))
    start = 128 * int(np.argmax(blocks))
    return start + int(np.argmax(scores[start : start + 128]))
