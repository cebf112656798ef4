"""What one command adds to the load estimates of the workers that have it."""

from dataclasses import dataclass

from baton.router.policy.cluster import Plan, RoutedRequest, WorkerSnapshot
from baton.router.workers.load import LoadEstimate


@dataclass(frozen=True, slots=True)
class LoadShare:
    """One command in the load estimates of its workers, as far as these are still there."""

    number: int
    decode: LoadEstimate | None
    prefill: LoadEstimate | None

    def add(self, plan: Plan, routed: RoutedRequest) -> None:
        """The command is sent."""
        if self.decode is not None:
            num_tokens = routed.missing_tokens(plan.decode) if plan.prefill is None else 0
            self.decode.add(self.number, num_tokens, _num_blocks(routed.missing_tokens(plan.decode), plan.decode))
        if self.prefill is not None and plan.prefill is not None:
            best = min(routed.missing_tokens(worker) for worker in (plan.prefill, plan.prefix_source) if worker)
            num_blocks = _num_blocks(routed.missing_tokens(plan.prefill), plan.prefill)
            self.prefill.add(self.number, best, num_blocks, is_prefill=True)

    def computed(self) -> None:
        """The first token came: the prefill worker is done with the prompt."""
        if self.decode is not None:
            self.decode.computed(self.number)
        if self.prefill is not None:
            self.prefill.remove(self.number)

    def remove(self) -> None:
        """The command has ended."""
        for load in (self.decode, self.prefill):
            if load is not None:
                load.remove(self.number)


def _num_blocks(num_tokens: int, worker: WorkerSnapshot) -> int:
    return -(-num_tokens // worker.block_size)
