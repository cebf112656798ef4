"""Recent outputs, for each cache salt separately: no tenant's drafts, nor their times, depend on another's tokens."""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from baton.engine.speculation.suffix.history import END, TokenHistory

MAX_TOKENS = 1 << 18  # of all outputs in the store; each takes about 300 bytes
MAX_OUTPUT_TOKENS = 8192  # the last ones of an output are stored
MAX_WAITING = 256  # outputs that have ended and are not indexed yet; further ones are not stored


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """An indexed output."""

    cache_salt: str
    num_tokens: int  # with the END
    end: int  # position behind it in its salt's history


class OutputStore:
    """The latest outputs, at most a number of requests and tokens. The oldest ones leave first."""

    def __init__(self, max_requests: int) -> None:
        self.num_tokens = 0  # of indexed outputs
        self._max_requests = max_requests
        self._histories: dict[str, TokenHistory] = {}
        self._stored: deque[StoredOutput] = deque()
        self._waiting: deque[tuple[str, array[int]]] = deque()
        self._num_indexed = 0  # tokens of the first waiting output
        self._stale: deque[TokenHistory] = deque()  # with tokens to forget

    def __len__(self) -> int:
        return len(self._stored)

    def history(self, cache_salt: str) -> TokenHistory | None:
        """Return the outputs of requests with a salt; None: there are none."""
        return self._histories.get(cache_salt)

    def add(self, cache_salt: str, token_ids: Sequence[int]) -> None:
        """Add the output of a request that has ended."""
        if self._max_requests and token_ids and len(self._waiting) < MAX_WAITING:
            self._waiting.append((cache_salt, array("q", (*token_ids[-MAX_OUTPUT_TOKENS:], END))))

    def index(self, count: int) -> int:
        """Index at most `count` waiting tokens, and return how many there were. Forget as many that have left."""
        left = count
        while self._waiting and left:
            cache_salt, token_ids = self._waiting[0]
            history = self._histories.setdefault(cache_salt, TokenHistory())
            new = token_ids[self._num_indexed : self._num_indexed + left]
            history.append(new)
            left -= len(new)
            self._num_indexed += len(new)
            if self._num_indexed == len(token_ids):
                self._waiting.popleft()
                self._num_indexed = 0
                self._keep(StoredOutput(cache_salt, len(token_ids), history.end))
        self._forget(count)
        return count - left

    def _forget(self, count: int) -> None:
        while self._stale and count:
            num_forgotten = self._stale[0].forget(count)
            count -= num_forgotten
            if count:
                self._stale.popleft()

    def _keep(self, output: StoredOutput) -> None:
        """Count an indexed output, and drop the oldest ones if there are too many."""
        self._stored.append(output)
        self.num_tokens += output.num_tokens
        while len(self._stored) > self._max_requests or self.num_tokens > MAX_TOKENS:
            oldest = self._stored.popleft()
            self.num_tokens -= oldest.num_tokens
            history = self._histories[oldest.cache_salt]
            history.drop_before(oldest.end)
            if oldest.end == history.end:
                del self._histories[oldest.cache_salt]
            else:
                self._stale.append(history)
