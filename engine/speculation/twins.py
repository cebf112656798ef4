"""Twins of requests in a draft model or head: their tokens, and which of them have KV there.

A twin is made when drafts are offered for a request for the first time, wherever its KV came from: by computation, from
the prefix cache, a handover or a pull. A draft model only needs the request's tokens. A head also needs the hidden
state in front of each, so its twins begin with the first token that follows one computed here. A twin holds blocks from
its preparation until the request ends, or until others need them while the request is preempted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from baton.engine.kv.block_manager import BlockManager
from baton.engine.request import Request, RequestStatus
from baton.engine.scheduling.schedule import ScheduledRequest


@dataclass(slots=True, eq=False)
class Twin:
    """A request as a draft model sees it."""

    request: Request
    own: Request  # its tokens from `first` on, with drafted ones at the end while some are drafted, and its blocks
    num_known: int  # tokens of `own` that the request has
    first: int = 0
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

    def __init__(self, blocks: BlockManager, vocab_size: int, first_of: Callable[[Request], int] | None = None) -> None:
        """vocab_size: of the draft model; it may lack padding that the model for which it drafts has.

        first_of: first token of a request that follows one with a hidden state, for a head, whose KV of drafted tokens
        is not kept: it was made of estimated hidden states. None: for a draft model.
        """
        self._blocks = blocks
        self._vocab_size = vocab_size
        self._first_of = first_of
        self._twins: dict[Request, Twin] = {}

    def __iter__(self) -> Iterator[Twin]:
        return iter(self._twins.values())

    def of(self, request: Request) -> Twin | None:
        """Return the twin of a request, with all its tokens from the first on and no drafted ones; None: it has none.

        It begins anew if hidden states of tokens that lack KV are lost.
        """
        first = self._first_of(request) if self._first_of is not None else 0
        twin = self._twins.get(request)
        if request.num_tokens <= first:
            return None
        if twin is not None:
            self._follow(twin)
            end = twin.first + twin.num_with_kv
            if first <= end and (twin.has_blocks or first == twin.first):
                return twin
            self._blocks.free(twin.own)
        twin = self._twins[request] = self._new(request, first)
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

    def _new(self, request: Request, first: int) -> Twin:
        sampling = replace(request.sampling, grammar=None, logprobs=None, prompt_logprobs=None)
        if any(token_id >= self._vocab_size for token_id in sampling.logit_bias):
            bias = {each: value for each, value in sampling.logit_bias.items() if each < self._vocab_size}
            sampling = replace(sampling, logit_bias=bias)
        own = Request(
            request.request_id,
            request.token_ids[first:],
            max(request.num_prompt_tokens - first, 0),
            sampling,
            request.cache_salt,
            adapter=request.adapter,
            adapter_digest=request.adapter_digest,
            adapter_start=max(request.first_adapted - first, 0),
            block_hashes=list(request.block_hashes) if self._first_of is None and not request.images else [],
        )
        num_expected = self._blocks.num_cached_tokens(own)
        return Twin(request, own, own.num_tokens, first, self._can_read(own.token_ids), num_expected=num_expected)

    def _can_read(self, token_ids: Sequence[int]) -> bool:
        return max(token_ids, default=0) < self._vocab_size

    def _follow(self, twin: Twin) -> None:
        """Replace drafted tokens by those that the request got; a draft model's KV of those that were right stays."""
        own, known = twin.own.token_ids, twin.request.token_ids
        new = known[twin.first + twin.num_known :]
        num_right = 0
        if self._first_of is None:
            drafted = own[twin.num_known :]
            while num_right < min(len(drafted), len(new)) and drafted[num_right] == new[num_right]:
                num_right += 1
        own[twin.num_known :] = new
        twin.is_readable &= self._can_read(new)
        num_right += twin.num_known
        twin.num_known = len(own)
        if twin.has_blocks:
            self._blocks.trim(twin.own)
            self.advance(twin, min(twin.num_with_kv, num_right, len(own) - 1))  # drafting begins with the last token

    def _hold(self, twin: Twin, num_drafts: int) -> bool:
        if not twin.has_blocks:
            if not self._blocks.take(twin.own, reserve=0, reads_cache=True):
                return False
            twin.num_with_kv = twin.own.num_computed_tokens
        return self._blocks.grow(twin.own, num_drafts)

    def _free(self, twin: Twin) -> None:
        self._blocks.free(twin.own)
        twin.num_with_kv = twin.num_expected = twin.own.num_computed_tokens = 0


def in_step_order(items: Iterable[ScheduledRequest]) -> list[ScheduledRequest]:
    """Return the work of a step in its order: requests that compute more than one token come last."""
    return sorted(items, key=lambda item: item.num_new_tokens > 1)
