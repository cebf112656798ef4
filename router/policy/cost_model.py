"""What a plan costs: seconds to the first token, seconds added to the tokens of others, cache, and fairness.

Every price is in seconds. A worker computes what is queued in the order of its coming, in steps that each also decode
one token of every running sequence: so a new prompt waits for the tokens before it, and a running sequence waits for
the prompt tokens in its steps. Blocks that come to a worker, computed or read, evict others: a cache in use is full.
"""

from dataclasses import dataclass
from math import ceil

from baton.router.policy.cluster import RoutedRequest, WorkerSnapshot
from baton.router.policy.rates import RateBook, WorkerTimes
from baton.router.policy.targets import SLOPE, Targets


@dataclass(slots=True)
class Price:
    """What a plan is predicted to take."""

    ttft_s: float  # from now to the first token
    # Added to tokens: of requests that run beside it, of those behind it, and its own after the first. Where times are
    # promised: what that costs, and what the first token's time costs beside its seconds.
    harm_s: float
    evicted_s: float  # to compute again what is evicted for its blocks, as far as that will be wanted
    unfair_s: float  # of the prompt's computation, for a decode worker that got more than its share lately

    def __str__(self) -> str:
        return (
            f"{self.ttft_s:.4f} s to the first token, {self.harm_s:.4f} s of harm, {self.evicted_s:.4f} s of cache "
            f"lost, {self.unfair_s:.4f} s for fairness"
        )


@dataclass(slots=True)
class PrefillOption:
    """A prefill worker, what it would be asked to pull, and its part of the price."""

    prefill: WorkerSnapshot
    source: WorkerSnapshot | None
    wait_s: float  # until it begins with the prompt
    compute_s: float
    num_computed_tokens: int
    num_chunk_tokens: int  # of them, in a step
    first_chunk_s: float  # of `compute_s`; only after it are there blocks to read
    evicted_s: float  # as in `Price`, at the prefill worker
    harm_s: float  # the same


@dataclass(frozen=True, slots=True)
class CostModel:
    """The constants of the prices, and the prices."""

    targets: Targets | None = None  # what is promised; None: nothing, so that a delay counts by its seconds
    harm_weight: float = 0.1  # of such a second, against one of waiting for the first token
    eviction_weight: float = 0.8  # of a second's work that is evicted and would have been of use
    fairness_weight: float = 4.0  # with twice its share a worker loses so many times what its cache is worth
    num_output_tokens: int = 256  # of a request, assumed: nobody knows how long an answer becomes
    num_step_tokens: int = 2048  # most tokens of a step, of a worker that does not say it
    hop_s: float = 0.004  # from one worker to another and back
    min_source_blocks: int = 4  # fewer blocks are not worth a third worker

    def times(self, request: RoutedRequest, worker: WorkerSnapshot, book: RateBook) -> WorkerTimes:
        """The worker as the request finds it."""
        return WorkerTimes.of(request, worker, book.of(worker), self.num_step_tokens, self.num_output_tokens)

    def cost(self, price: Price) -> float:
        """What is least for the best plan."""
        return (
            self._ttft_weight * price.ttft_s
            + self._harm_weight * price.harm_s
            + self.eviction_weight * price.evicted_s
            + self.fairness_weight * price.unfair_s
        )

    def option_cost(self, option: PrefillOption) -> float:
        """The prefill worker's part of a plan's cost."""
        busy_s = self._harm_weight * option.harm_s
        if self.targets is not None:
            busy_s += self.targets.late_s(self.hop_s + option.wait_s + option.compute_s)
        ttft_s = option.wait_s + option.compute_s
        return self._ttft_weight * ttft_s + busy_s + self.eviction_weight * option.evicted_s

    def is_tight(self, decode: WorkerTimes) -> bool:
        """Whether one more sequence there would have to wait for room, or come near what is promised."""
        return decode.room_s > 0 or (self.targets is not None and self.targets.is_tight(decode))

    def local(self, request: RoutedRequest, decode: WorkerTimes, unfair_s: float) -> Price:
        """The decode worker computes the prompt itself."""
        work_s = decode.missing / decode.rates.prefill_tokens_per_s
        ttft_s = decode.room_s + decode.queue_s + _compute_s(decode, decode.missing)
        if self.targets is None:
            others_s = (decode.num_running + 1) * work_s  # who decodes now, and on the average one who comes next
            harm_s = others_s + self._joining_s(decode)
        else:
            harm_s = self.targets.late_s(ttft_s) + self.targets.joining_s(request, decode)
            harm_s += self.targets.disturbing_s(request, decode, work_s, num_more=1)
        return Price(ttft_s, harm_s, request.reuse_share * work_s, unfair_s)

    def remote(self, request: RoutedRequest, decode: WorkerTimes, option: PrefillOption, unfair_s: float) -> Price:
        """A prefill worker computes the prompt; its blocks are read while it goes on computing."""
        block_size = decode.worker.block_size
        block_s = decode.worker.block_bytes / decode.rates.read_bytes_per_s
        transfer_s = ceil(decode.missing / block_size) * block_s
        last_chunk_s = min(transfer_s, ceil(option.num_chunk_tokens / block_size) * block_s)
        hidden_s = option.compute_s - option.first_chunk_s
        exposed_s = max(last_chunk_s, transfer_s - hidden_s)
        ttft_s = decode.room_s + self.hop_s + option.wait_s + option.compute_s
        if self.targets is None:
            harm_s = exposed_s + option.harm_s + self._joining_s(decode)
        else:
            harm_s = self.targets.late_s(ttft_s) + self.targets.joining_s(request, decode)
            harm_s += self.targets.pause_s(request, exposed_s) + option.harm_s
        return Price(
            ttft_s=ttft_s,
            harm_s=harm_s,
            evicted_s=option.evicted_s + request.reuse_share * decode.missing / decode.rates.prefill_tokens_per_s,
            unfair_s=unfair_s,
        )

    def option(
        self, request: RoutedRequest, prefill: WorkerTimes, source: WorkerSnapshot | None = None
    ) -> PrefillOption:
        """What the prompt takes at a prefill worker that pulls what `source` has more of it, if there is one."""
        missing, wait_s = prefill.missing, prefill.queue_s + prefill.room_s
        if source is not None:
            missing = request.missing_tokens(source)
            num_blocks = (prefill.missing - missing) / prefill.worker.block_size
            pull_s = num_blocks * prefill.worker.block_bytes / prefill.rates.read_bytes_per_s
            wait_s = max(wait_s, self.hop_s + pull_s)
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
            request.reuse_share * prefill.missing / prefill.rates.prefill_tokens_per_s,
            harm_s,
        )

    def unfair_s(self, request: RoutedRequest, decode: WorkerTimes, book: RateBook) -> float:
        """Prompts follow what is cached, and what is cached follows prompts: without this one worker may get most."""
        worth_s = request.reuse_share * request.num_tokens / decode.rates.prefill_tokens_per_s
        return book.excess(decode.worker) * worth_s

    @property
    def _ttft_weight(self) -> float:
        """A first token that is early is worth no more than tokens that are, where times for both are promised."""
        return 1.0 if self.targets is None else SLOPE

    @property
    def _harm_weight(self) -> float:
        return self.harm_weight if self.targets is None else 1.0

    def _joining_s(self, decode: WorkerTimes) -> float:
        """One more sequence slows every token of those who run, and they its own."""
        return 2 * decode.num_running * self.num_output_tokens * decode.rates.decode_sequence_s


def _compute_s(worker: WorkerTimes, num_tokens: int) -> float:
    """So many tokens of a prompt, in as many steps as they need."""
    num_steps = ceil(num_tokens / worker.num_step_tokens)
    return num_tokens / worker.rates.prefill_tokens_per_s + num_steps * worker.step_s
