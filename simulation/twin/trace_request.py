"""One request of a trace, as the twin knows it."""

from dataclasses import dataclass

from baton.engine.kv.block_hash import BlockHash, split_hashes


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """When it comes, how long it is, and what its prompt shares with others'."""

    due_s: float  # from the trace's start
    num_prompt_tokens: int
    num_output_tokens: int
    hashes: bytes  # of the prompt's full blocks, one after the other

    def block_hashes(self) -> list[BlockHash]:
        """The same, one by one."""
        return split_hashes(self.hashes)
