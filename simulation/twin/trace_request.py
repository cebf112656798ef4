"""One request of a trace, as the twin knows it."""

from dataclasses import dataclass

from baton.engine.kv.block_hash import BlockHash, split_hashes
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Arrival time, lengths, and the block hashes that show which prefixes it shares."""

    due_s: float  # from the trace's start
    num_prompt_tokens: int
    num_output_tokens: int
    hashes: bytes  # of the prompt's full blocks, one after the other

    def block_hashes(self) -> list[BlockHash]:
        """Return the hashes one by one."""
        return split_hashes(self.hashes)

    def to_engine(self, number: int, receives_kv: bool) -> Request:
        """Return the engine's request that generates. `number` is the router's command."""
        return self._request(number, self.num_output_tokens, receives_kv=receives_kv, keep_blocks=False)

    def to_prefill(self, number: int) -> Request:
        """Return the engine's request that computes the prompt for another engine, and one token."""
        return self._request(number, 1, receives_kv=False, keep_blocks=True)

    def _request(self, number: int, max_tokens: int, receives_kv: bool, keep_blocks: bool) -> Request:
        return Request(
            request_id=RequestId(str(number)),
            token_ids=[number] * self.num_prompt_tokens,  # blocks without a hash of the trace equal no other request's
            num_prompt_tokens=self.num_prompt_tokens,
            sampling=SamplingParams(max_tokens=max_tokens),
            receives_kv=receives_kv,
            receives_whole=receives_kv,
            keep_blocks=keep_blocks,
            block_hashes=self.block_hashes(),
        )
