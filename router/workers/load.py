"""A worker's load: its last report, plus the commands that the router has sent since."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp

from baton.protos.worker_pb2 import WorkerDescription, WorkerLoad
from baton.router.errors import WorkerLost
from baton.router.policy.cluster import Plan, RecentRequests, RoutedRequest, WorkerRole, WorkerSnapshot
from baton.router.workers.additions import Addition, Additions
from baton.rpc.pooling import pooling_from_proto

RATES = (
    *("step_s", "prefill_tokens_per_s", "decode_step_s", "decode_sequence_s"),
    *("read_bytes_per_s", "fetch_bytes_per_s", "adapter_load_s"),
)
SPAN_S = 5.0  # over which the share is averaged


def check_rates(load: WorkerLoad) -> None:
    """Raise WorkerLost for invalid rates: with a NaN among the costs, no worker would be the best."""
    for name in RATES:
        if not 0 <= getattr(load, name) < math.inf:
            raise WorkerLost(f"the worker's {name} is {getattr(load, name)}")


class PromptShare:
    """Share of its recent time that a worker spent on prompts: prompt tokens divided by its rate. Rarely over 1."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0  # of the shares so far, and of their weights, which decay with time
        self._noted_s: float | None = None
        self._num_tokens = 0  # prompt tokens up to `_noted_s`

    def note(self, num_tokens: int, tokens_per_s: float, now_s: float) -> None:
        """Record the prompt tokens that the worker has computed since its start. A rate of 0 is unknown."""
        if self._noted_s is not None and now_s > self._noted_s and tokens_per_s > 0:
            seconds = now_s - self._noted_s
            share = (num_tokens - self._num_tokens) / tokens_per_s / seconds
            decay = exp(-seconds / SPAN_S)
            self._sum = decay * self._sum + (1 - decay) * share
            self._weight = decay * self._weight + (1 - decay)
        self._noted_s, self._num_tokens = now_s, num_tokens

    @property
    def value(self) -> float:
        """The share as of the last report, over the time since the first one if that is shorter."""
        return self._sum / self._weight if self._weight else 0.0


class LoadEstimate:
    """A worker's last load report and this router's requests there.

    Commands have numbers, and a worker's reports name the commands that they include. So no command is counted twice or
    missed, however old the report is. If reports name no commands, a report is assumed to include all commands sent
    before it arrived, but the load is never estimated below that of this router's own requests.
    """

    def __init__(self) -> None:
        self.reported = WorkerLoad()
        self.adapters: Mapping[str, str] = {}  # digests of the adapters that the worker has loaded, by name
        self._additions = Additions()
        self._unreported = Additions()  # those that no report includes yet
        self._recent = RecentRequests()
        self._prompt_share = PromptShare()
        # This router's requests that the last report counts and that have since
        self._num_ended = 0  # ended
        self._num_prefilled = 0  # ended as prompts for other workers
        self._num_received = 0  # got their first token from another worker, or ended without it
        self._is_exact = False  # whether the last report named the commands that it includes
        self._snapshot: WorkerSnapshot | None = None  # cached until a change

    def report(self, load: WorkerLoad, taken: Iterable[int] | None = None, now_s: float | None = None) -> None:
        """Replace the worker's report.

        `taken`: numbers of the commands that this report is the first to include; None: the worker reports none.
        `now_s`: time of the report; None: do not update the prompt share.
        """
        self.reported = load
        if now_s is not None:
            self._prompt_share.note(load.num_prefilled_tokens, load.prefill_tokens_per_s, now_s)
        self._is_exact = taken is not None
        self._num_ended = self._num_prefilled = self._num_received = 0
        if taken is None:
            self._unreported.clear()
        else:
            for number in taken:
                self._unreported.pop(number)
        self._snapshot = None

    def list_adapters(self, adapters: Mapping[str, str]) -> None:
        """Replace the adapters that the worker has loaded, digests by name."""
        self.adapters = dict(adapters)
        self._snapshot = None

    def add(
        self,
        number: int,
        num_tokens: int,
        num_blocks: int = 0,
        is_prefill: bool = False,
        is_received: bool = False,
        adapter: str = "",
    ) -> None:
        """Add a command that makes the worker compute `num_tokens` and allocate `num_blocks`.

        `is_prefill`: the worker computes the prompt for another one, which decodes; `is_received`: the reverse.
        """
        addition = Addition(num_tokens, num_blocks, is_prefill, is_received, adapter)
        self._additions.put(number, addition)
        self._unreported.put(number, addition)
        if not is_prefill:
            self._recent = self._recent.with_one(number)
        self._snapshot = None

    def computed(self, number: int) -> None:
        """Record a request's first token: only decoding is left."""
        addition = self._additions.get(number)
        if addition is None or not (addition.num_tokens or addition.is_received):
            return
        self._additions.put(number, addition.computed())
        if number in self._unreported:
            self._unreported.put(number, addition.computed())
        else:
            self._num_received += addition.is_received
        self._snapshot = None

    def remove(self, number: int) -> None:
        """Remove a request that has ended at the worker."""
        addition = self._additions.pop(number)
        if addition is None:
            return
        if self._unreported.pop(number) is None:
            self._num_ended += 1
            self._num_prefilled += addition.is_prefill
            self._num_received += addition.is_received
        self._snapshot = None

    @property
    def num_own_requests(self) -> int:
        """This router's requests at the worker."""
        return len(self._additions)

    @property
    def num_requests(self) -> int:
        """Requests running and waiting at the worker."""
        return max(self._num_counted, len(self._additions))

    @property
    def num_prefills(self) -> int:
        """Requests at the worker whose prompts it computes for other workers."""
        num_counted = self.reported.num_prefills - self._num_prefilled + self._unreported.num_prefills
        # Own requests that only `num_requests` counts may be prompts that are computed, their first token on its way.
        num_uncounted = self.num_requests - self._num_counted
        return max(0, num_counted, min(self._additions.num_prefills, num_counted + num_uncounted))

    @property
    def num_receiving(self) -> int:
        """Requests at the worker whose prompts other workers compute for it."""
        return max(0, self.reported.num_receiving - self._num_received) + self._unreported.num_received

    @property
    def num_queued_tokens(self) -> int:
        """Tokens to compute until all requests at the worker decode."""
        num_tokens = self.reported.num_queued_tokens + self._unreported.num_tokens
        return num_tokens if self._is_exact else max(num_tokens, self._additions.num_tokens)

    @property
    def num_free_blocks(self) -> int:
        """Free blocks after all commands that have been sent."""
        return max(0, self.reported.num_free_blocks - self._unreported.num_blocks)

    @property
    def _num_counted(self) -> int:
        """Requests that the last report counts and that have not ended, and those that it does not include yet."""
        num_reported = self.reported.num_running + self.reported.num_waiting - self._num_ended
        return num_reported + len(self._unreported)

    def _resident_adapters(self) -> frozenset[str]:
        """Return the adapters in slots, with those that this router's requests there need."""
        if not self.adapters:
            return frozenset()
        return frozenset(self.reported.resident_adapters).union(self._additions.adapters)

    def snapshot(self, description: WorkerDescription, role: WorkerRole) -> WorkerSnapshot:
        """Return the worker's snapshot for policies. `description` must not change during the life of the estimate."""
        if self._snapshot is None:
            load = self.reported
            self._snapshot = WorkerSnapshot(
                worker_id=description.worker_id,
                incarnation=description.incarnation,
                address=description.address,
                role=role,
                fingerprint=description.fingerprint,
                kv_fingerprint=description.pool.fingerprint,
                block_size=description.block_size,
                num_requests=self.num_requests,
                num_prefills=self.num_prefills,
                num_awaited_blocks=load.num_awaited_blocks,
                num_receiving=self.num_receiving,
                num_queued_tokens=self.num_queued_tokens,
                num_free_blocks=self.num_free_blocks,
                max_model_len=description.max_model_len,
                num_blocks=load.num_blocks,
                max_num_seqs=description.max_num_seqs,
                max_num_batched_tokens=description.max_num_batched_tokens,
                block_bytes=description.pool.block_bytes * max(1, description.num_ranks),
                prefill_tokens_per_s=load.prefill_tokens_per_s,
                decode_step_s=load.decode_step_s,
                decode_sequence_s=load.decode_sequence_s,
                read_bytes_per_s=load.read_bytes_per_s,
                fetch_bytes_per_s=load.fetch_bytes_per_s,
                kv_stores=tuple(description.kv_stores),
                prompt_share=self._prompt_share.value,
                recent=self._recent,
                num_tokens_done=load.num_prefilled_tokens + load.num_generated_tokens,
                pooling=pooling_from_proto(description.pooling),
                adapters=self.adapters,
                resident_adapters=self._resident_adapters(),
                max_loras=description.adapters.max_loras,
                adapter_load_s=load.adapter_load_s,
            )
        return self._snapshot


@dataclass(frozen=True, slots=True)
class LoadShare:
    """One command in the load estimates of its workers; None for a worker that was lost."""

    number: int
    decode: LoadEstimate | None
    prefill: LoadEstimate | None

    def add(self, plan: Plan, routed: RoutedRequest) -> None:
        """Add the command."""
        if self.decode is not None:
            num_tokens = routed.missing_tokens(plan.decode) if plan.prefill is None else 0
            num_blocks = _num_blocks(routed.missing_tokens(plan.decode), plan.decode)
            self.decode.add(
                self.number, num_tokens, num_blocks, is_received=plan.prefill is not None, adapter=routed.adapter_name
            )
        if self.prefill is not None and plan.prefill is not None:
            best = min(routed.missing_tokens(worker) for worker in (plan.prefill, plan.prefix_source) if worker)
            num_blocks = _num_blocks(routed.missing_tokens(plan.prefill), plan.prefill)
            self.prefill.add(self.number, best, num_blocks, is_prefill=True, adapter=routed.adapter_name)

    def computed(self) -> None:
        """Record the first token: the prefill worker has finished the prompt."""
        if self.decode is not None:
            self.decode.computed(self.number)
        if self.prefill is not None:
            self.prefill.remove(self.number)

    def remove(self) -> None:
        """Remove the command, which has ended."""
        for load in (self.decode, self.prefill):
            if load is not None:
                load.remove(self.number)


def _num_blocks(num_tokens: int, worker: WorkerSnapshot) -> int:
    return -(-num_tokens // worker.block_size)
