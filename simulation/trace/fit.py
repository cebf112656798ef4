"""Step times from measured requests: non-negative least squares for the twin's machine.

Eight times are unknown: `step_s`, `sequence_s`, `1 / prefill_tokens_per_s`, `attended_s`, `overhead_s`, `handover_s`,
`join_s` and `link_s`, a token's on the link.
Every answer gives an equation, and so does every busy period, weighted so that errors are relative:

    tpot = (1 + j) * (step_s + sequence_s * n) + p / prefill_tokens_per_s + attended_s * q + join_s * o + link_s * t
    b = overhead_s + handover_s * h + a * (step_s + sequence_s * m)
        + k * (step_s + sequence_s * d) + u / prefill_tokens_per_s + attended_s * v

    t   tokens of the last chunk that were handed over, for each of its own tokens
    n   mean number of sequences that its decode worker decoded meanwhile, itself included
    j   half a step for joining a batch under way, for each of its own tokens
    o   a handover, for each of its own tokens
    p   prompt tokens that its decode worker computed for others meanwhile, for each of its own tokens
    q   tokens that those looked at, all added up, for the same
    b   a busy period of a worker that computes prompts: from the first one's sending to the last one's first token
    h   1 if another worker than the one that decodes computed them, else 0
    m   mean number of sequences that the first one's decode worker decoded meanwhile
    a   half a step until that worker admits it, if it had others
    u   tokens of the prompts that had to be computed, and k the steps that they take
    v   tokens that those looked at, themselves among them, all added up
    d   mean number of sequences that the computing worker decoded meanwhile

Prompts that are there at once share steps, so that nobody can tell what one of them took; but all of them take what a
busy period lasts, in which every prompt came before the one before it was done. Prompts that got their first tokens
together were computed in the same steps.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median

import numpy as np
from numpy.typing import NDArray

from loadtool.concurrency import Concurrency
from loadtool.errors import DatasetError
from loadtool.profile import ProfiledRequest
from simulation.spec import WorkerSpec
from simulation.trace.machine import Machine

Place = tuple[int, str]  # a run, and a worker

NUM_TERMS = 8
NUM_WEIGHINGS = 8
MIN_REQUESTS = 8
TOGETHER_S = 0.002  # first tokens so close to each other are of one step
HALF_A_STEP = 0.5  # what is left of a step under way, on average
REQUEST_S = 0.0005  # of a router's work for a request; times depend on it little, if it is not nothing
LEAST_S = 1e-5  # a shorter time says nothing but how exact clocks are


@dataclass(frozen=True, slots=True)
class Equation:
    """What the terms times their coefficients should give."""

    coefficients: tuple[float, float, float, float, float, float, float, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """The machine, and how well it tells what it was made from."""

    machine: Machine
    num_requests: int
    ttft_error: float  # median of the relative errors, of busy periods
    tpot_error: float

    def __str__(self) -> str:
        spec, machine = self.machine.spec, self.machine
        return (
            f"{self.num_requests} requests: a step takes {1e3 * spec.step_s:.3g} ms, each sequence "
            f"{1e3 * spec.sequence_s:.3g} ms more, prompts {spec.prefill_tokens_per_s:,.0f} tokens/s and "
            f"{1e9 * spec.attended_s:.3g} ns for each token looked at; the way "
            f"{1e3 * machine.overhead_s:.3g} ms, a handover {1e3 * machine.handover_s:.3g} ms and "
            f"{1e3 * machine.join_s:.3g} ms before the second token, {1e-6 * spec.link_bytes_per_s:,.0f} MB/s; "
            f"median error of "
            f"{self.ttft_error:.0%} for a prompt and {self.tpot_error:.0%} for a token"
        )


def fit_machine(requests: Sequence[ProfiledRequest], spec: WorkerSpec) -> Fit:
    """The machine that the requests tell of; what they do not tell of is the spec's. Raises DatasetError."""
    if len(requests) < MIN_REQUESTS:
        raise DatasetError(f"the profile has {len(requests)} requests, but a fit takes {MIN_REQUESTS} or more")
    tpots = list(_tpot_equations(requests, spec.max_num_batched_tokens))
    ttfts = list(_ttft_equations(requests, spec.max_num_batched_tokens))
    if not tpots:
        raise DatasetError("the profile has no request with more than one output token")
    terms = _solve([*tpots, *ttfts])
    step_s, sequence_s, token_s, attended_s, overhead_s, handover_s, join_s, link_s = terms
    if token_s <= 0:
        raise DatasetError("the profile's prompts do not tell how long prompt tokens take: they need other lengths")
    fitted = replace(
        spec,
        step_s=step_s,
        sequence_s=sequence_s,
        prefill_tokens_per_s=1 / token_s,
        attended_s=attended_s,
        link_bytes_per_s=spec.block_bytes / spec.block_size / link_s if link_s > 0 else spec.link_bytes_per_s,
    )
    machine = Machine(spec=fitted, overhead_s=overhead_s, request_s=REQUEST_S, handover_s=handover_s, join_s=join_s)
    return Fit(machine, len(requests), _error(ttfts, terms), _error(tpots, terms))


def _tpot_equations(requests: Sequence[ProfiledRequest], max_step_tokens: int) -> Iterator[Equation]:
    for group in _by_worker(requests, "decode_worker").values():
        decoding = Concurrency([_first_s(each) for each in group], [_last_s(each) for each in group])
        local = [each for each in group if each.prefill_worker == each.decode_worker]
        for request in group:
            num_tokens = request.output_tokens - 1
            if request.tpot_s is not None and request.tpot_s > LEAST_S:
                first_s, last_s = _first_s(request), _last_s(request)
                shares = [(_share(each, first_s, last_s) / num_tokens, each) for each in local]
                num_beside = sum(share * each.uncached_tokens for share, each in shares)
                num_looked_at = sum(share * _num_attended(each) for share, each in shares)
                num_sequences = decoding.mean(first_s, last_s)
                is_remote = request.prefill_worker != request.decode_worker
                steps = 1 + is_remote * HALF_A_STEP * min(1.0, num_sequences - 1) / num_tokens
                chunk = min(request.handed_over_tokens, max_step_tokens) / num_tokens
                yield Equation(
                    (
                        steps,
                        steps * num_sequences,
                        num_beside,
                        num_looked_at,
                        0.0,
                        0.0,
                        is_remote / num_tokens,
                        chunk,
                    ),
                    request.tpot_s,
                )


def _ttft_equations(requests: Sequence[ProfiledRequest], max_step_tokens: int) -> Iterator[Equation]:
    decoding = {
        worker: Concurrency([_first_s(each) for each in group], [_last_s(each) for each in group])
        for worker, group in _by_worker(requests, "decode_worker").items()
    }
    for worker, group in _by_worker(requests, "prefill_worker").items():
        for period in _busy_periods(sorted(group, key=_first_s)):
            first = period[0]
            begins_s, ends_s = min(each.sent_s for each in period), _first_s(period[-1])
            num_tokens = sum(each.uncached_tokens for each in period)
            steps = sum(
                ceil(sum(each.uncached_tokens for each in together) / max_step_tokens) for together in _together(period)
            )
            beside = decoding[worker].mean(begins_s, ends_s) if worker in decoding else 0.0
            before = decoding[first.run, first.decode_worker].mean(begins_s, _first_s(first))
            admission = HALF_A_STEP * min(1.0, before)
            yield Equation(
                (
                    steps + admission,
                    steps * beside + admission * before,
                    num_tokens,
                    sum(map(_num_attended, period)),
                    1.0,
                    float(first.prefill_worker != first.decode_worker),
                    0.0,
                    0.0,
                ),
                max(LEAST_S, ends_s - begins_s),
            )


def _busy_periods(ordered: Iterable[ProfiledRequest]) -> Iterator[list[ProfiledRequest]]:
    """Requests that the worker computed without a pause: each was there before the one before it was done."""
    period: list[ProfiledRequest] = []
    for request in ordered:
        if period and request.sent_s >= _first_s(period[-1]):
            yield period
            period = []
        period.append(request)
    if period:
        yield period


def _by_worker(requests: Iterable[ProfiledRequest], attribute: str) -> Mapping[Place, list[ProfiledRequest]]:
    """Those of one worker in one run, in the order of sending."""
    groups: dict[Place, list[ProfiledRequest]] = defaultdict(list)
    for request in sorted(requests, key=lambda each: each.sent_s):
        groups[request.run, getattr(request, attribute)].append(request)
    return groups


def _together(ordered: Iterable[ProfiledRequest]) -> Iterator[list[ProfiledRequest]]:
    """Requests whose first tokens came at once."""
    group: list[ProfiledRequest] = []
    for request in ordered:
        if group and _first_s(request) - _first_s(group[0]) > TOGETHER_S:
            yield group
            group = []
        group.append(request)
    if group:
        yield group


def _first_s(request: ProfiledRequest) -> float:
    return request.sent_s + request.ttft_s


def _last_s(request: ProfiledRequest) -> float:
    return _first_s(request) + (request.tpot_s or 0.0) * (request.output_tokens - 1)


def _num_attended(request: ProfiledRequest) -> float:
    """What the tokens of its prompt that were computed looked at: all before them, and themselves."""
    num_tokens = request.uncached_tokens
    return num_tokens * request.cached_tokens + num_tokens * (num_tokens + 1) / 2


def _share(request: ProfiledRequest, begins_s: float, ends_s: float) -> float:
    """Of the time from the request's sending to its first token, what lies within."""
    within_s = min(ends_s, _first_s(request)) - max(begins_s, request.sent_s)
    return max(0.0, within_s) / request.ttft_s if request.ttft_s > 0 else 0.0


def _solve(equations: Sequence[Equation]) -> list[float]:
    """The least-squares solution for errors that are relative to what was measured and what is said alike.

    Relative to what was measured alone, the few that took very long would count for little, and all would come out too
    short. So each is weighed by the root of the product with what was said the time before (the errors are then nearly
    those of logarithms).
    """
    coefficients, measured_s = np.array([each.coefficients for each in equations]), _seconds(equations)
    weights = 1 / measured_s
    for _ in range(NUM_WEIGHINGS):
        solution = _solve_weighed(coefficients * weights[:, None], measured_s * weights)
        said_s = np.maximum(coefficients @ np.array(solution), LEAST_S)
        weights = 1 / np.sqrt(measured_s * said_s)
    return solution


def _seconds(equations: Sequence[Equation]) -> NDArray[np.float64]:
    return np.array([each.seconds for each in equations])


def _solve_weighed(rows: NDArray[np.float64], targets: NDArray[np.float64]) -> list[float]:
    """The solution without negative terms: the most negative one is left out until there is none."""
    kept = [term for term in range(NUM_TERMS) if rows[:, term].any()]
    solution = [0.0] * NUM_TERMS
    while kept:
        values = _least_squares(rows[:, kept], targets)
        lowest = int(values.argmin())
        if values[lowest] >= 0:
            for term, value in zip(kept, values.tolist(), strict=True):
                solution[term] = value
            break
        del kept[lowest]
    return solution


def _least_squares(rows: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """The columns are brought to one scale first: tokens are thousands, steps are one."""
    scale = np.abs(rows).max(axis=0)
    values, *_ = np.linalg.lstsq(rows / scale, targets, rcond=None)
    solved: NDArray[np.float64] = values / scale
    return solved


def _error(equations: Sequence[Equation], terms: Sequence[float]) -> float:
    """The median of the relative errors."""
    if not equations:
        return 0.0
    told = [sum(a * b for a, b in zip(each.coefficients, terms, strict=True)) for each in equations]
    return median(abs(said_s / each.seconds - 1) for said_s, each in zip(told, equations, strict=True))
