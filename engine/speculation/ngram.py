"""Prompt lookup: a request's last tokens, found earlier in it, are followed by what followed them there.

Saxena, "Prompt lookup decoding" (2023); vLLM's method `ngram`.
"""

from array import array
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from baton.engine.request import Request

TOKENS_PER_STEP = 2048  # indexed at most for one step: a millisecond or two; long prompts take several
MAX_CANDIDATES = 16  # latest occurrences of a suffix that are compared
NONE = -1


class SuffixIndex:
    """Places of each sequence of `shortest` tokens, linked from the latest to the earliest (as in LZ77's hash chains).

    Constant time and memory a token.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        """Look up suffixes of `shortest` to `longest` tokens."""
        self._shortest = shortest
        self._longest = longest
        self._latest: dict[int, int] = {}  # end of the latest occurrence, by hash
        self._earlier = array("q")  # by end - shortest: the end of the occurrence before; NONE: there is none

    def extend(self, token_ids: Sequence[int], end: int) -> int:
        """Add the sequences that end at or before `end` and were not added; `token_ids` only ever grows.

        Returns how many there were.
        """
        shortest, latest = self._shortest, self._latest
        places = range(len(self._earlier), end - shortest + 1)
        for place in places:
            key = hash(tuple(token_ids[place : place + shortest]))
            self._earlier.append(latest.get(key, NONE))
            latest[key] = place + shortest
        return len(places)

    @property
    def next_end(self) -> int:
        """End of the first sequence that was not added."""
        return len(self._earlier) + self._shortest

    def find(self, token_ids: Sequence[int]) -> int | None:
        """Return where the latest occurrence of the longest suffix that occurs earlier ends; None if none does.

        Of a suffix that occurs more than MAX_CANDIDATES times, only the latest are compared.
        """
        if len(token_ids) <= self._shortest:
            return None
        suffix = token_ids[: -self._longest - 1 : -1]  # from the last token backwards
        end = self._latest.get(hash(tuple(token_ids[-self._shortest :])), NONE)
        found, best = None, self._shortest - 1
        for _ in range(MAX_CANDIDATES):
            if end == NONE or best == len(suffix):
                break
            length = 0
            while length < len(suffix) and length < end and token_ids[end - 1 - length] == suffix[length]:
                length += 1
            if length > best:
                found, best = end, length
            end = self._earlier[end - self._shortest]
        return found


class NGramLookup:
    """Lookup that continues a request as its last tokens were continued earlier in its prompt or output."""

    def __init__(self, shortest: int, longest: int) -> None:
        """Look up the longest suffix of `shortest` to `longest` tokens that occurs earlier."""
        self._shortest, self._longest = shortest, longest
        self._num_left = TOKENS_PER_STEP  # tokens that may be indexed for the step
        self._indexes: WeakKeyDictionary[Request, SuffixIndex] = WeakKeyDictionary()

    def begin_step(self) -> None:
        """Begin the proposals for another step; requests that come first are indexed first."""
        self._num_left = TOKENS_PER_STEP

    def propose(self, request: Request, limit: int) -> list[int]:
        """Return at most `limit` tokens that may follow the known ones; see `Lookup`."""
        index = self._indexes.get(request)
        if index is None:
            index = self._indexes[request] = SuffixIndex(self._shortest, self._longest)
        token_ids = request.token_ids
        num_tokens = len(token_ids)
        # The suffix itself is not an earlier occurrence.
        self._num_left -= index.extend(token_ids, min(num_tokens - 1, index.next_end - 1 + self._num_left))
        end = index.find(token_ids)
        if end is None:
            return []
        # The tokens that follow may reach the suffix itself, and then repeat.
        period = num_tokens - end
        return [token_ids[end + place % period] for place in range(limit)]
