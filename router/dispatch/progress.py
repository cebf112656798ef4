"""Progress of one completion over all its attempts at workers."""

import asyncio
from dataclasses import dataclass, field

from baton.router.adapters.adapter import Adapter
from baton.router.dispatch.retries import Losses
from baton.router.generation import Generation
from baton.router.metrics.live import LiveCompletion
from baton.router.policy.cluster import Plan, RoutedRequest
from baton.router.tracing.completion_trace import CompletionTrace
from baton.rpc.backoff import Backoff

FIRST_BACKOFF_S = 0.05  # before the next attempt of a completion that was moved and found all workers full
LAST_BACKOFF_S = 0.5


@dataclass(slots=True)
class Holder:
    """The worker that handed a completion off last, and has its KV."""

    incarnation: str
    command_id: str
    is_released: bool = False  # the worker need not wait for a pull of the KV any more


@dataclass(slots=True)
class Progress:
    """Progress of one completion over all its attempts."""

    token_ids: list[int]  # prompt and output so far
    live: LiveCompletion
    adapter: Adapter | None = None  # None: the model itself
    num_prompt_logprobs: int = 0  # positions that were yielded
    attempt: int = 0  # earlier attempts
    num_failures: int = 0  # earlier attempts that count as failures
    losses: Losses = field(default_factory=Losses)  # the failures that were losses of workers
    fingerprint: str = ""  # of the worker that generated the output so far: a different model must not continue it
    excluded: set[str] = field(default_factory=set)  # incarnations that failed it
    busy: set[str] = field(default_factory=set)  # incarnations that refused it and may still be full
    holder: Holder | None = None  # None: no worker handed it off
    moved_s: float | None = None  # event loop time of the last `move`; None: no worker has accepted the request
    backoff: Backoff | None = None  # None: has not waited for room yet
    failure: Exception | None = None  # error of the last attempt
    routed: RoutedRequest = field(default_factory=lambda: RoutedRequest(1))  # last input of the policy
    trace: CompletionTrace | None = None  # None: it is not recorded

    @property
    def may_wait(self) -> bool:
        """Whether it waits for a worker if there is none."""
        return self.attempt > 0 or self.moved_s is not None

    @property
    def is_blameless(self) -> bool:
        """Whether no worker was lost with it or refused it as unavailable."""
        return not self.losses.num_lost and not self.excluded

    def pulls(self, plan: Plan) -> bool:
        """Return whether a plan pulls the KV from the worker that handed the completion off."""
        source, holder = plan.prefix_source, self.holder
        return source is not None and holder is not None and source.incarnation == holder.incarnation

    def move(self) -> None:
        """Record that it needs a worker after one has accepted its request. Full workers may have room now."""
        self.moved_s = asyncio.get_running_loop().time()
        self.busy.clear()

    def hold(self, held_s: float) -> None:
        """Leave the time for which it waited for a first worker out of the time since it was moved."""
        if self.moved_s is not None:
            self.moved_s += held_s

    async def back_off(self) -> None:
        """Wait, longer each time. Workers that were full may have room afterwards."""
        if self.backoff is None:
            self.backoff = Backoff(FIRST_BACKOFF_S, LAST_BACKOFF_S)
        await self.backoff.wait()
        self.busy.clear()


def live_completion(generation: Generation, index: int) -> LiveCompletion:
    """Return the completion as the console shows it."""
    request = generation.request
    return LiveCompletion(
        request.client_id,
        index,
        len(generation.token_ids),
        generation.sampling.max_tokens,
        request.context.arrived_s,
        adapter="" if request.adapter is None else request.adapter.name,
    )
