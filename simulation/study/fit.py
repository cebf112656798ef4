"""Step times from measured requests: non-negative least squares for the twin's machine.

Nine times are unknown: `step_s`, `sequence_s`, `prompts_step_s`, `1 / prefill_tokens_per_s`, `attended_s`,
`overhead_s`, `handover_s`, `join_s` and `link_s`, the time of a token on the link.
Each output gives an equation, and so does each stretch of steps with prompts, weighted so that errors are relative:

    tpot = (1 + j) * (step_s + sequence_s * n) + prompts_step_s * c + p / prefill_tokens_per_s + attended_s * q
           + join_s * o + link_s * t
    b = f * (overhead_s + handover_s * h + a * (step_s + sequence_s * m))
        + k * (step_s + sequence_s * d + prompts_step_s) + u / prefill_tokens_per_s + attended_s * v

For an output, with all counts except `n` divided by the number of its tokens after the first:

    n   mean number of sequences that its decode worker decoded at the same time, itself included
    j   half a step for joining the batch
    c   steps in which its decode worker also computed prompts
    p   tokens of those prompts
    q   sum of the tokens that those tokens attended to
    o   1 if its prompt was handed over
    t   tokens of the last chunk that was handed over

For a stretch, which is a part of a busy period of a worker that computes prompts:

    b   seconds from the sending of the period's first prompt, or from the first tokens of the previous stretch, to the
        last first token of the stretch
    f   1 if it is the first of its busy period, otherwise 0
    h   1 if the prompts were handed over, otherwise 0
    m   mean number of sequences that the first prompt's decode worker decoded at the same time
    a   half a step until that worker admits the request, if it decoded others
    u   tokens of the prompts that had to be computed, and k the steps that they take
    v   sum of the tokens that those tokens attended to, themselves included
    d   mean number of sequences that the computing worker decoded at the same time

Prompts that are at a worker at the same time share steps, so the time of one of them is unknown. But prompts that got
their first tokens together were computed in the same steps. In a busy period every prompt arrives before the previous
one is done, so these steps begin when the steps of the previous prompts end. If a full step may have begun a prompt
that got its first token in a later step, the rest of the period is one stretch.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import ceil

from baton.loadtool.concurrency import Concurrency
from baton.loadtool.errors import DatasetError
from baton.loadtool.profile import ProfiledRequest
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.study.least_squares import LEAST_S, Equation, median_error, solve
from baton.simulation.twin.machine import Machine

Place = tuple[int, str]  # run and worker

MIN_REQUESTS = 8
TOGETHER_S = 0.005  # first tokens that follow each other so closely are of one step, as they are sent one by one
HALF_A_STEP = 0.5  # mean remaining part of a step
REQUEST_S = 0.0005  # of the router's work for a request; results hardly depend on it, as long as it is not 0


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted machine, and how well it explains the measurements."""

    machine: Machine
    num_requests: int
    ttft_error: float  # median relative error, over stretches of steps with prompts
    tpot_error: float  # the same, over outputs

    def __str__(self) -> str:
        spec, machine = self.machine.spec, self.machine
        return (
            f"{self.num_requests} requests: a step takes {1e3 * spec.step_s:.3g} ms, each sequence "
            f"{1e3 * spec.sequence_s:.3g} ms more, with prompts {1e3 * spec.prompts_step_s:.3g} ms more and "
            f"{spec.prefill_tokens_per_s:,.0f} tokens/s and {1e9 * spec.attended_s:.3g} ns for each attended token; "
            f"the overhead is {1e3 * machine.overhead_s:.3g} ms, a handover {1e3 * machine.handover_s:.3g} ms and "
            f"{1e3 * machine.join_s:.3g} ms before the second token, {1e-6 * spec.link_bytes_per_s:,.0f} MB/s; "
            f"median error of "
            f"{self.ttft_error:.0%} for a prompt and {self.tpot_error:.0%} for a token"
        )


def fit_machine(requests: Sequence[ProfiledRequest], spec: WorkerSpec) -> Fit:
    """Return the machine that fits the requests best; values that they do not determine are the spec's.

    Raises DatasetError if there are too few requests, or if they do not determine the time of a token.
    """
    if len(requests) < MIN_REQUESTS:
        raise DatasetError(f"the profile has {len(requests)} requests, but a fit needs {MIN_REQUESTS} or more")
    tpots = list(_tpot_equations(requests, spec.max_num_batched_tokens))
    ttfts = list(_ttft_equations(requests, spec.max_num_batched_tokens))
    if not tpots:
        raise DatasetError("the profile has no request with more than one output token")
    terms = solve([*tpots, *ttfts])
    step_s, sequence_s, prompts_step_s, token_s, attended_s, overhead_s, handover_s, join_s, link_s = terms
    if token_s <= 0:
        raise DatasetError(
            "the profile does not determine the time of a prompt token: its prompts need different lengths"
        )
    fitted = replace(
        spec,
        step_s=step_s,
        sequence_s=sequence_s,
        prompts_step_s=prompts_step_s,
        prefill_tokens_per_s=1 / token_s,
        attended_s=attended_s,
        link_bytes_per_s=spec.block_bytes / spec.block_size / link_s if link_s > 0 else spec.link_bytes_per_s,
    )
    machine = Machine(spec=fitted, overhead_s=overhead_s, request_s=REQUEST_S, handover_s=handover_s, join_s=join_s)
    return Fit(machine, len(requests), median_error(ttfts, terms), median_error(tpots, terms))


def _tpot_equations(requests: Sequence[ProfiledRequest], max_step_tokens: int) -> Iterator[Equation]:
    for group in _by_worker(requests, "decode_worker").values():
        decoding = Concurrency([_first_s(each) for each in group], [_last_s(each) for each in group])
        local = [each for each in group if each.prefill_worker == each.decode_worker]
        prompt_steps = list(_prompt_steps(local, max_step_tokens))
        for request in group:
            num_tokens = request.output_tokens - 1
            if request.tpot_s is not None and request.tpot_s > LEAST_S:
                first_s, last_s = _first_s(request), _last_s(request)
                shares = [(_share(each, first_s, last_s) / num_tokens, steps, each) for each, steps in prompt_steps]
                num_prompt_steps = sum(share * steps for share, steps, _ in shares)
                num_prompt_tokens = sum(share * each.uncached_tokens for share, _, each in shares)
                num_attended = sum(share * _num_attended(each) for share, _, each in shares)
                num_sequences = decoding.mean(first_s, last_s)
                is_remote = request.prefill_worker != request.decode_worker
                steps = 1 + is_remote * HALF_A_STEP * min(1.0, num_sequences - 1) / num_tokens
                chunk = min(request.handed_over_tokens, max_step_tokens) / num_tokens
                yield Equation(
                    (
                        steps,
                        steps * num_sequences,
                        num_prompt_steps,
                        num_prompt_tokens,
                        num_attended,
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
    shortest_s = min(each.ttft_s for each in requests)  # upper bound of the time from the client to a worker
    for worker, group in _by_worker(requests, "prefill_worker").items():
        for period in _busy_periods(sorted(group, key=_first_s)):
            first, ends_s = period[0], 0.0
            for place, stretch in enumerate(_stretches(period, max_step_tokens)):
                sent_s = min(each.sent_s for each in (stretch if place else period))
                begins_s, ends_s = ends_s if place else sent_s, _first_s(stretch[-1])
                if place and sent_s > begins_s - shortest_s:
                    continue  # perhaps none of its prompts was at the worker yet
                steps = ceil(sum(each.uncached_tokens for each in stretch) / max_step_tokens)
                num_decoding = decoding[worker].mean(begins_s, ends_s) if worker in decoding else 0.0
                before = 0.0 if place else decoding[first.run, first.decode_worker].mean(begins_s, _first_s(first))
                admission = HALF_A_STEP * min(1.0, before)
                yield Equation(
                    (
                        steps + admission,
                        steps * num_decoding + admission * before,
                        steps,
                        sum(each.uncached_tokens for each in stretch),
                        sum(map(_num_attended, stretch)),
                        float(not place),
                        float(not place and first.prefill_worker != first.decode_worker),
                        0.0,
                        0.0,
                    ),
                    max(LEAST_S, ends_s - begins_s),
                )


def _stretches(period: Iterable[ProfiledRequest], max_step_tokens: int) -> Iterator[list[ProfiledRequest]]:
    """Yield groups with first tokens of one step.

    If the next group may have begun in a full step, it and all that follow are in one group.
    """
    groups = list(_together(period))
    for place, (group, after) in enumerate(pairwise(groups), 1):
        room = -sum(each.uncached_tokens for each in group) % max_step_tokens
        if room < max(each.uncached_tokens for each in after):
            yield list(chain.from_iterable(groups[place - 1 :]))
            return
        yield group  # later prompts were not there, or they would have got their first tokens in the same step
    yield groups[-1]


def _busy_periods(ordered: Iterable[ProfiledRequest]) -> Iterator[list[ProfiledRequest]]:
    """Yield requests that the worker computed without a pause: each was sent before the previous one was done."""
    period: list[ProfiledRequest] = []
    for request in ordered:
        if period and request.sent_s >= _first_s(period[-1]):
            yield period
            period = []
        period.append(request)
    if period:
        yield period


def _by_worker(requests: Iterable[ProfiledRequest], attribute: str) -> Mapping[Place, list[ProfiledRequest]]:
    """Return the requests of each worker in each run, in the order of sending."""
    groups: dict[Place, list[ProfiledRequest]] = defaultdict(list)
    for request in sorted(requests, key=lambda each: each.sent_s):
        groups[request.run, getattr(request, attribute)].append(request)
    return groups


def _together(ordered: Iterable[ProfiledRequest]) -> Iterator[list[ProfiledRequest]]:
    """Yield groups of requests whose first tokens are of one step."""
    group: list[ProfiledRequest] = []
    for request in ordered:
        if group and _first_s(request) - _first_s(group[-1]) > TOGETHER_S:
            yield group
            group = []
        group.append(request)
    if group:
        yield group


def _prompt_steps(requests: Iterable[ProfiledRequest], max_step_tokens: int) -> Iterator[tuple[ProfiledRequest, float]]:
    """Yield each request with its share of the steps in which its prompt was computed."""
    for group in _together(sorted(requests, key=_first_s)):
        steps = ceil(sum(each.uncached_tokens for each in group) / max_step_tokens)
        for request in group:
            yield request, steps / len(group)


def _first_s(request: ProfiledRequest) -> float:
    return request.sent_s + request.ttft_s


def _last_s(request: ProfiledRequest) -> float:
    return _first_s(request) + (request.tpot_s or 0.0) * (request.output_tokens - 1)


def _num_attended(request: ProfiledRequest) -> float:
    """Return the sum of the tokens to which the prompt's computed tokens attended: all before them, and themselves."""
    num_tokens = request.uncached_tokens
    return num_tokens * request.cached_tokens + num_tokens * (num_tokens + 1) / 2


def _share(request: ProfiledRequest, begins_s: float, ends_s: float) -> float:
    """Return the share of the time from the request's sending to its first token that is within the interval."""
    within_s = min(ends_s, _first_s(request)) - max(begins_s, request.sent_s)
    return max(0.0, within_s) / request.ttft_s if request.ttft_s > 0 else 0.0
