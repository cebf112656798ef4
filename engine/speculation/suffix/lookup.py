"""Suffix decoding (Oliaro et al., 2024, arXiv 2411.04975; vLLM's method `suffix`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.engine.request import Request, RequestStatus
from baton.engine.speculation.suffix.history import SuffixLimits, TokenHistory
from baton.engine.speculation.suffix.store import OutputStore

TOKENS_PER_STEP = 1024  # indexed at most for one step, of prompts, and as many of outputs
MAX_OWN_TOKENS = 1 << 20  # indexed at most of all requests that decode; each takes about 300 bytes


@dataclass(slots=True)
class IndexedRequest:
    """A request that decodes, and the history of its own tokens."""

    request: Request
    history: TokenHistory = field(default_factory=TokenHistory)


class SuffixLookup:
    """Lookup that continues a request as its last tokens were most often continued, in it or in recent outputs.

    Outputs are those of requests with the same cache salt. The draft with the higher score is proposed.
    """

    def __init__(self, limits: SuffixLimits, max_cached_requests: int) -> None:
        self._limits = limits
        self._store = OutputStore(max_cached_requests)
        self._indexed: dict[int, IndexedRequest] = {}  # requests that have not ended, by identity
        self._num_left = TOKENS_PER_STEP  # tokens of requests that may be indexed for the step
        self._num_own = 0  # tokens in the histories of requests

    def begin_step(self) -> None:
        """Store the outputs of requests that have ended, and begin the proposals for another step."""
        self._num_left = TOKENS_PER_STEP
        for each in [each for each in self._indexed.values() if each.request.status is RequestStatus.FINISHED]:
            del self._indexed[id(each.request)]
            self._num_own -= each.history.end
            self._store.add(each.request.cache_salt, each.request.token_ids[each.request.num_prompt_tokens :])
        self._store.index(TOKENS_PER_STEP)

    def propose(self, request: Request, limit: int) -> Sequence[int]:
        """Return at most `limit` tokens that may follow the known ones; see `Lookup`."""
        own, token_ids = self._own(request), request.token_ids
        best = own.draft(token_ids, limit, self._limits, token_ids[own.end : own.end + limit])  # a draft reads no more
        outputs = self._store.history(request.cache_salt)
        if outputs is not None:
            other = outputs.draft(token_ids, limit, self._limits)
            best = other if other.score > best.score else best
        return best.token_ids

    def _own(self, request: Request) -> TokenHistory:
        """Return a request's history, extended to all but its last token as far as the bounds allow."""
        indexed = self._indexed.get(id(request))
        if indexed is None:
            indexed = self._indexed[id(request)] = IndexedRequest(request)
        history = indexed.history
        num_left = min(self._num_left, MAX_OWN_TOKENS - self._num_own)
        new = request.token_ids[history.end : min(len(request.token_ids) - 1, history.end + num_left)]
        self._num_left -= len(new)
        self._num_own += len(new)
        history.append(new)
        return history
