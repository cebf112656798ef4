"""Twins of requests in a draft model: their tokens, and which of them have KV there.

A twin is made when drafts are offered for a request for the first time, wherever its KV came from: by computation, from
the prefix cache, a handover or a pull. It only needs the request's tokens. It holds blocks from its preparation until
the request ends, or until others need them while the request is preempted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from baton.engine.kv.block_manager import BlockManager
from baton.engine.request import Request, RequestStatus
from baton.engine.scheduling.schedule import ScheduledRequest


@dataclass(slots=True, eq=False)
class Twin:
    """A request as a draft model sees it."""

    request: Request
    own: Request  # its tokens, with drafted ones at the end while some are drafted, and its blocks
    num_known: int  # tokens of the request that `own` has
    is_readable: bool = True  # the draft model knows all of its tokens
    num_with_kv: int = 0  # leading tokens of `own` with KV
    num_expected: int = 0  # leading tokens with KV in the draft model's prefix cache, before it has blocks

    @property
    def has_blocks(self) -> bool:
        """Whether it has blocks."""
        return bool(self.own.block_table)

    @property
    def num_missing(self) -> int:
        """Tokens without KV, except for the last one, with which drafting begins."""
        return self.own.num_tokens - 1 - max(self.num_with_kv, 0 if self.has_blocks else self.num_expected)

    def next_chunk(self, num_tokens: int) -> ScheduledRequest:
        """Return the work of computing the next tokens without KV, none of which is the last."""
        return ScheduledRequest(self.own, self.num_with_kv, num_tokens, samples=False)

    def next_pass(self) -> ScheduledRequest:
        """Return the work of drafting one more token."""
        return ScheduledRequest(self.own, self.num_with_kv, self.own.num_tokens - self.num_with_kv, samples=True)

    def take_sampled(self, token_id: int) -> None:
        """Add the token that a pass has drafted; those before it have KV now."""
        self.num_with_kv = self.own.num_tokens
        self.own.token_ids.append(token_id)


class Twins:
    """All twins, and the owner of the draft model's blocks."""

    def __init__(self, blocks: BlockManager, vocab_size: int) -> None:
        """vocab_size: of the draft model; it may lack padding that the model for which it drafts has."""
        self._blocks = blocks
        self._vocab_size = vocab_size
        self._twins: dict[Request, Twin] = {}

    def __iter__(self) -> Iterator[Twin]:
        return iter(self._twins.values())

    def of(self, request: Request) -> Twin:
        """Return the twin of a request, with all tokens of the request and no drafted ones."""
        twin = self._twins.get(request)
        if twin is None:
            twin = self._twins[request] = self._new(request)
        else:
            self._follow(twin)
        return twin

    def drop_ended(self) -> None:
        """Free the blocks of requests that have ended."""
        for twin in [each for each in self if each.request.status is RequestStatus.FINISHED]:
            if twin.has_blocks:
                self._follow(twin)  # what it has computed stays in the prefix cache
            self._blocks.free(twin.own)
            del self._twins[twin.request]

    def hold(self, twin: Twin, num_drafts: int) -> bool:
        """Give a twin blocks for its tokens and some drafted ones. Returns False if too few are free.

        Those of preempted requests are freed first: other requests of the model have the memory that they need.
        """
        if self._hold(twin, num_drafts):
            return True
        for other in self:
            if other.has_blocks and other.request.status is not RequestStatus.RUNNING:
                self._free(other)
        return self._hold(twin, num_drafts)

    def advance(self, twin: Twin, num_with_kv: int) -> None:
        """Note that the first `num_with_kv` tokens, all of them known ones, have KV."""
        twin.num_with_kv = num_with_kv
        self._blocks.advance(twin.own, num_with_kv)

    def check_integrity(self) -> None:
        """Assert that every block has exactly its expected holders."""
        self._blocks.check_integrity(twin.own for twin in self)
        assert all(each.own.num_computed_tokens <= each.num_with_kv < each.own.num_tokens for each in self)

    def _new(self, request: Request) -> Twin:
        sampling = replace(request.sampling, grammar=None, logprobs=None, prompt_logprobs=None)
        if any(token_id >= self._vocab_size for token_id in sampling.logit_bias):
            bias = {each: value for each, value in sampling.logit_bias.items() if each < self._vocab_size}
            sampling = replace(sampling, logit_bias=bias)
        own = Request(
            request.request_id,
            list(request.token_ids),
            request.num_prompt_tokens,
            sampling,
            request.cache_salt,
            adapter=request.adapter,
            adapter_digest=request.adapter_digest,
            block_hashes=list(request.block_hashes) if not request.images else [],
        )
        num_expected = self._blocks.num_cached_tokens(own)
        return Twin(request, own, request.num_tokens, self._can_read(own.token_ids), num_expected=num_expected)

    def _can_read(self, token_ids: Sequence[int]) -> bool:
        return max(token_ids, default=0) < self._vocab_size

    def _follow(self, twin: Twin) -> None:
        """Replace drafted tokens by those that the request got; the KV of those that were right stays."""
        known, own = twin.request.token_ids, twin.own.token_ids
        num_right = twin.num_known
        while num_right < min(len(own), len(known)) and own[num_right] == known[num_right]:
            num_right += 1
        own[num_right:] = known[num_right:]
        twin.is_readable &= self._can_read(known[twin.num_known :])
        twin.num_known = len(known)
        if twin.has_blocks:
            self._blocks.trim(twin.own)
            self.advance(twin, min(twin.num_with_kv, num_right, len(known) - 1))  # drafting begins with the last token

    def _hold(self, twin: Twin, num_drafts: int) -> bool:
        if not twin.has_blocks:
            if not self._blocks.take(twin.own, reserve=0, reads_cache=True):
                return False
            twin.num_with_kv = twin.own.num_computed_tokens
        return self._blocks.grow(twin.own, num_drafts)

    def _free(self, twin: Twin) -> None:
        self._blocks.free(twin.own)
        twin.num_with_kv = twin.num_expected = twin.own.num_computed_tokens = 0
