"""What one replica of the twin is, and what lies between it and the client."""

from dataclasses import dataclass, field, replace

from baton.simulation.engine.spec import WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A worker's times, and those around it: the same for every replica."""

    spec: WorkerSpec = field(default_factory=WorkerSpec)
    overhead_s: float = 0.0  # of a request's way to its worker and its first token's way back
    request_s: float = 0.0  # of the way, in which no other request passes: who comes behind waits for it
    handover_s: float = 0.0  # that asking another worker for the prompt adds, beside its queue, its steps and the link
    join_s: float = 0.0  # from the first token to the batch that adds after a handover, beside the link

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output: what the spec says, as far as a pool has blocks for it."""
        return min(self.spec.max_model_len, (self.spec.num_blocks - 1) * self.spec.block_size)

    def with_block_size(self, block_size: int) -> "Machine":
        """The same memory in blocks of another size: larger ones cost less to simulate."""
        spec = self.spec
        if block_size == spec.block_size:
            return self
        num_tokens = (spec.num_blocks - 1) * spec.block_size
        resized = replace(
            spec,
            block_size=block_size,
            num_blocks=max(1, num_tokens // block_size) + 1,  # one more is for padding
            block_bytes=max(1, round(spec.block_bytes / spec.block_size * block_size)),
        )
        return replace(self, spec=resized)
