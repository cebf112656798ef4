"""Cost of a plan: time to the first token, delay of other requests' tokens, evicted cache, fairness.

All prices are in seconds. A worker computes queued prompts in order of arrival, in steps that also decode one token of
every running sequence. A new prompt therefore waits for the prompt tokens ahead of it, and a running sequence waits
for the prompt tokens in its steps. Blocks that a worker computes or reads evict others, since a cache in use is full.
A request for an adapter that is in no slot waits until it is loaded.
"""

from dataclasses import dataclass
from math import ceil

from baton.router.policy.cluster import RoutedRequest, WorkerRole, WorkerSnapshot
from baton.router.policy.estimates import RateBook, WorkerTimes
from baton.router.policy.targets import SLOPE, Targets

# Shares of a worker's KV blocks. With fewer free ones it is tight: running sequences soon have no room to grow, and
# prefixes that are used again are evicted.
FREE_SHARE = 0.1
FREE_SHARE_FOR_REUSE = 0.8  # in addition, times the share of prompts that is reused
MOST_FREE_SHARE = 0.55


@dataclass(slots=True)
class Price:
    """Predicted price of a plan."""

    ttft_s: float  # from now to the first token
    # Delay of tokens: of the requests that run with it, of those queued after it, and its own after the first. With
    # targets: the cost of that delay, and what a late first token costs in addition to its seconds.
    harm_s: float
    evicted_s: float  # to recompute the part of the evicted blocks that will be used again, and to reload an adapter
    unfair_s: float  # a share of the prompt's compute time, for a decode worker that recently got more than its share

    def __str__(self) -> str:
        return (
            f"{self.ttft_s:.4f} s to the first token, {self.harm_s:.4f} s of harm, {self.evicted_s:.4f} s of cache "
            f"lost, {self.unfair_s:.4f} s for fairness"
        )


@dataclass(slots=True)
class DecodeOption:
    """A decode worker, and its part of the price of each plan."""

    times: WorkerTimes
    joining_s: float  # as `harm_s` in `Price`, of one more sequence in its steps
    unfair_s: float  # as in `Price`


@dataclass(slots=True)
class PrefillOption:
    """A prefill worker, the worker to pull a prefix from, and their part of the price."""

    prefill: WorkerSnapshot
    source: WorkerSnapshot | None
    wait_s: float  # until the prompt starts
    compute_s: float
    num_computed_tokens: int
    num_chunk_tokens: int  # of `num_computed_tokens`, per step
    first_chunk_s: float  # part of `compute_s`; there are no blocks to read before its end
    evicted_s: float  # as in `Price`, at the prefill worker
    harm_s: float  # as in `Price`, at the prefill worker


@dataclass(frozen=True, slots=True)
class CostModel:
    """Prices of plans, and their constants."""

    targets: Targets | None = None  # latency targets; None: a delay costs its seconds
    harm_weight: float = 0.1  # of a second of delay, relative to a second of TTFT
    eviction_weight: float = 0.8  # of a second of evicted work that would have been reused
    fairness_weight: float = 4.0  # at twice its share a worker loses this multiple of what its cache is worth
    num_output_tokens: int = 256  # assumed per request, since the real length is unknown
    num_step_tokens: int = 2048  # token budget of a step, for workers that do not report it
    hop_s: float = 0.004  # round trip between workers
    min_source_blocks: int = 4  # minimum gain for which a third worker is involved

    def times(self, request: RoutedRequest, worker: WorkerSnapshot, book: RateBook) -> WorkerTimes:
        """Return the times of a worker for this request."""
        times = book.times.get(worker.incarnation)
        if times is None:
            times = WorkerTimes.of(request, worker, book.of(worker), self.num_step_tokens)
            book.times[worker.incarnation] = times
        return times

    def cost(self, price: Price) -> float:
        """Return the weighted price; the best plan has the least."""
        rest = self.eviction_weight * price.evicted_s + self.fairness_weight * price.unfair_s
        if self.targets is None:
            return price.ttft_s + self.harm_weight * price.harm_s + rest
        return SLOPE * price.ttft_s + price.harm_s + rest

    def option_cost(self, option: PrefillOption) -> float:
        """Return the prefill worker's part of the cost."""
        busy_s = self._harm_weight * option.harm_s
        if self.targets is not None:
            busy_s += self.targets.late_s(self.hop_s + option.wait_s + option.compute_s)
        ttft_s = option.wait_s + option.compute_s
        return self._ttft_weight * ttft_s + busy_s + self.eviction_weight * option.evicted_s

    def is_tight(self, request: RoutedRequest, decode: WorkerTimes) -> bool:
        """Return whether one more sequence would wait for room, soon or at once, take the room of a prefix that will be
        used again, or come close to the targets.
        """
        worker = decode.worker
        if decode.room_s > 0 or worker.num_free_blocks < _least_free_share(request) * worker.num_blocks:
            return True
        return self.targets is not None and self.targets.is_tight(request, decode)

    def decode_option(self, request: RoutedRequest, decode: WorkerTimes, book: RateBook) -> DecodeOption:
        """Return a decode worker's part of the price."""
        return DecodeOption(decode, self._joining_s(request, decode, book), self._unfair_s(request, decode, book))

    def local(self, request: RoutedRequest, option: DecodeOption) -> Price:
        """Return the price if the decode worker computes the prompt itself."""
        decode = option.times
        work_s = decode.computed / decode.rates.prefill_tokens_per_s
        ttft_s = decode.start_s + _compute_s(decode, decode.computed)
        if self.targets is None:
            disturbed_s = (
                decode.num_running + 1
            ) * work_s  # the running ones, and on average one that arrives meanwhile
        else:
            disturbed_s = self.targets.late_s(ttft_s) + self.targets.disturbing_s(request, decode, work_s, num_more=1)
        evicted_s = request.reuse_share * (work_s + decode.fetch_s) + decode.evicted_adapter_s
        return Price(ttft_s, option.joining_s + disturbed_s, evicted_s, option.unfair_s)

    def remote(self, request: RoutedRequest, decode_option: DecodeOption, option: PrefillOption) -> Price:
        """Return the price if a prefill worker computes the prompt, with its blocks read during the computation."""
        decode = decode_option.times
        block_size = decode.worker.block_size
        block_s = decode.worker.block_bytes / decode.rates.read_bytes_per_s
        transfer_s = ceil(decode.missing / block_size) * block_s
        last_chunk_s = min(transfer_s, ceil(option.num_chunk_tokens / block_size) * block_s)
        hidden_s = option.compute_s - option.first_chunk_s
        exposed_s = max(last_chunk_s, transfer_s - hidden_s, decode.adapter_s - option.compute_s)
        ttft_s = decode.room_s + self.hop_s + option.wait_s + option.compute_s
        pause_s = exposed_s
        if self.targets is not None:
            pause_s = self.targets.late_s(ttft_s) + self.targets.pause_s(request, exposed_s)
        return Price(
            ttft_s=ttft_s,
            harm_s=decode_option.joining_s + pause_s + option.harm_s,
            evicted_s=option.evicted_s
            + request.reuse_share * decode.missing / decode.rates.prefill_tokens_per_s
            + decode.evicted_adapter_s,
            unfair_s=decode_option.unfair_s,
        )

    def option(
        self, request: RoutedRequest, prefill: WorkerTimes, source: WorkerSnapshot | None = None
    ) -> PrefillOption:
        """Return a prefill worker's part of the price; it pulls the longer prefix of `source`, if one is given."""
        missing, wait_s = prefill.computed, prefill.start_s
        if source is not None:
            missing = request.missing_tokens(source)
            num_blocks = (prefill.missing - missing) / prefill.worker.block_size
            pull_s = num_blocks * prefill.worker.block_bytes / prefill.rates.read_bytes_per_s
            wait_s = max(prefill.queue_s + prefill.room_s, self.hop_s + pull_s) + prefill.adapter_s
        num_chunk_tokens = min(missing, prefill.num_step_tokens)
        compute_s = harm_s = _compute_s(prefill, missing)
        if self.targets is not None:
            harm_s = self.targets.disturbing_s(request, prefill, compute_s, num_more=0)
        return PrefillOption(
            prefill.worker,
            source,
            wait_s,
            compute_s,
            missing,
            num_chunk_tokens,
            _compute_s(prefill, num_chunk_tokens),
            request.reuse_share * prefill.missing / prefill.rates.prefill_tokens_per_s + prefill.evicted_adapter_s,
            harm_s,
        )

    def _unfair_s(self, request: RoutedRequest, decode: WorkerTimes, book: RateBook) -> float:
        """Return the surcharge for a worker with more than its share.

        Prompts go where their prefix is cached, and are then cached there: without it one worker could attract most.
        """
        worth_s = request.reuse_share * request.num_tokens / decode.rates.prefill_tokens_per_s
        return book.excess(decode.worker) * worth_s

    @property
    def _ttft_weight(self) -> float:
        """Weight of TTFT: with targets for both, an early first token is worth no more than early later tokens."""
        return 1.0 if self.targets is None else SLOPE

    @property
    def _harm_weight(self) -> float:
        return self.harm_weight if self.targets is None else 1.0

    def _joining_s(self, request: RoutedRequest, decode: WorkerTimes, book: RateBook) -> float:
        """Return the harm of one more sequence: it slows all tokens of the running ones, and they slow its own.

        With targets, sequences at a colocated worker also keep prompts of other workers away from it, which would harm
        none if no sequence decoded there. So one more is priced as if all prompts were computed there, as long as the
        decode workers have memory for it.
        """
        if self.targets is not None:
            worker = decode.worker
            if worker.role is not WorkerRole.BOTH or not decode.num_decoding:
                return self.targets.joining_s(request, decode)
            least_prompt_share = book.all_prompts_share(worker.kv_fingerprint, _least_free_share(request))
            return self.targets.joining_s(request, decode, least_prompt_share)
        return 2 * decode.num_running * self.num_output_tokens * decode.rates.decode_sequence_s


def _least_free_share(request: RoutedRequest) -> float:
    """Return the share of free blocks below which a worker is tight."""
    return min(MOST_FREE_SHARE, FREE_SHARE + FREE_SHARE_FOR_REUSE * request.reuse_share)


def _compute_s(worker: WorkerTimes, num_tokens: int) -> float:
    """Return the seconds for this many prompt tokens, in as many steps as needed."""
    num_steps = ceil(num_tokens / worker.num_step_tokens)
    return num_tokens / worker.rates.prefill_tokens_per_s + num_steps * worker.step_s
