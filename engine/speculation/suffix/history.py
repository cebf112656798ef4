"""Token sequences, and where suffixes of a request occur in them."""

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

WINDOWS = (6, 2)  # numbers of tokens by which occurrences are linked, longest first
MAX_CANDIDATES = 16  # latest occurrences that are compared
MAX_LENGTHS = 3  # longest lengths of matches that are tried
END = -1  # follows each sequence
NONE = -1


@dataclass(frozen=True, slots=True)
class SuffixLimits:
    """Bounds of a match and its draft."""

    depth: int  # most tokens of both together
    spec_factor: float  # drafted tokens for each token of the match
    min_probability: float  # of the drafted tokens together

    @property
    def longest(self) -> int:
        """Longest suffix that is matched: with the tokens that it allows it has `depth` tokens."""
        return max(WINDOWS[-1], math.ceil(self.depth / (1 + self.spec_factor)))

    def draft_limit(self, match_len: int) -> int:
        """Return how many tokens a match allows."""
        return min(int(self.spec_factor * match_len), self.depth - match_len)


@dataclass(frozen=True, slots=True)
class ScoredDraft:
    """Drafted tokens, and how many of them are expected to be right."""

    token_ids: Sequence[int] = ()
    score: float = 0.0


class Links:
    """Ends of all windows of some tokens, linked from the latest to the earliest with the same tokens.

    Windows whose hashes are equal are linked too, so a match must be compared.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self._latest: dict[int, int] = {}  # position of the last token, by hash
        self._earlier = array("q")  # for each token of the history: the same window's end before it

    def append(self, tokens: Sequence[int], position: int) -> None:
        """Add the window that ends with a new token: `tokens`, fewer or with an END if there is no such window."""
        earlier = NONE
        if len(tokens) == self.window and END not in tokens:
            key = hash(tuple(tokens))
            earlier = self._latest.get(key, NONE)
            self._latest[key] = position
        self._earlier.append(earlier)

    def occurrences(self, tokens: Sequence[int], start: int, count: int) -> list[int]:
        """Return the latest ends of a window, `count` at most, latest first. start: first position of the history."""
        found: list[int] = []
        position = self._latest.get(hash(tuple(tokens)), NONE)
        while position >= start and len(found) < count:
            found.append(position)
            position = self._earlier[position - start]
        return found

    def forget(self, tokens: Sequence[int], position: int) -> None:
        """Forget the window that ends with a token if it is the latest one. The token stays linked until `drop`."""
        key = hash(tuple(tokens))
        if self._latest.get(key) == position:
            del self._latest[key]

    def drop(self, count: int) -> None:
        """Drop the first `count` tokens, which are forgotten."""
        del self._earlier[:count]


class TokenHistory:
    """Tokens of one or more sequences, oldest first. Positions stay the same when the oldest ones are dropped."""

    def __init__(self) -> None:
        self._tokens = array("q")
        self._start = 0  # position of the first token in memory
        self._first = 0  # position of the first token that counts; those in front of it are dropped some time later
        self._forgotten = 0  # position of the first token whose windows are linked
        self._links = [Links(window) for window in WINDOWS]

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self._start + len(self._tokens)

    def append(self, token_ids: Sequence[int]) -> None:
        """Add tokens, or END."""
        for token_id in token_ids:
            self._tokens.append(token_id)
            for links in self._links:
                links.append(self._tokens[-links.window :], self.end - 1)

    def drop_before(self, position: int) -> None:
        """Let the tokens in front of a position count no longer. `forget` frees their memory."""
        self._first = position

    def forget(self, count: int) -> int:
        """Forget at most `count` tokens that no longer count, and return how many there were.

        A pass over all windows at once would hold up the engine's thread for a noticeable time.
        """
        end = min(self._first, self._forgotten + count)
        for position in range(self._forgotten, end):
            place = position - self._start + 1
            for links in self._links:
                links.forget(self._tokens[max(0, place - links.window) : place], position)
        num_forgotten, self._forgotten = end - self._forgotten, end
        num_unread = end - self._start - WINDOWS[0]  # in front of the windows that are forgotten next
        if 2 * num_unread >= len(self._tokens):
            del self._tokens[:num_unread]
            self._start += num_unread
            for links in self._links:
                links.drop(num_unread)
        return num_forgotten

    def draft(
        self, token_ids: Sequence[int], limit: int, limits: SuffixLimits, rest: Sequence[int] = (END,)
    ) -> ScoredDraft:
        """Return the best draft of at most `limit` tokens behind `token_ids`, by the occurrences of their suffixes.

        rest: tokens behind the last one of this history, at which its last sequence goes on; the draft follows them
        unless they are an END.
        """
        suffix = token_ids[: -limits.longest - 1 : -1]  # from the last token backwards
        best = ScoredDraft()
        matches = self._matches(suffix)
        for length in sorted(set(matches.values()), reverse=True)[:MAX_LENGTHS]:
            places = [position + 1 for position, match_len in matches.items() if match_len >= length]
            found = self._path(places, min(limit, limits.draft_limit(length)), limits.min_probability, rest)
            if found.score > best.score:
                best = found
        return best

    def _matches(self, suffix: Sequence[int]) -> dict[int, int]:
        """Return the lengths of the latest matches, by their last positions: of the longest window that occurs."""
        for links in self._links:
            window = suffix[links.window - 1 :: -1] if len(suffix) >= links.window else ()
            if window:
                ends = links.occurrences(window, self._start, MAX_CANDIDATES)
                lengths = {end: self._match_len(suffix, end) for end in ends if end >= self._first}
                if found := {end: length for end, length in lengths.items() if length >= links.window}:
                    return found
        return {}

    def _match_len(self, suffix: Sequence[int], position: int) -> int:
        length, place = 0, position - self._start
        first = self._first - self._start
        while length < len(suffix) and place >= first and self._tokens[place] == suffix[length]:
            length += 1
            place -= 1
        return length

    def _path(self, places: list[int], limit: int, min_probability: float, rest: Sequence[int]) -> ScoredDraft:
        """Return the most frequent continuation of some places, token by token."""
        draft: list[int] = []
        probability, score = 1.0, 0.0
        while places and len(draft) < limit:
            following = [self._token(place, rest, draft) for place in places]
            token_id, count = following[0], following.count(following[0])
            if count < len(following):
                token_id, count = Counter(following).most_common(1)[0]  # of equally frequent ones the latest
            probability *= count / len(places)
            if token_id == END or probability < min_probability:
                break
            draft.append(token_id)
            score += probability
            places = [place + 1 for place, each in zip(places, following, strict=True) if each == token_id]
        return ScoredDraft(draft, score)

    def _token(self, position: int, rest: Sequence[int], draft: Sequence[int]) -> int:
        """Return the token at a position, perhaps behind the history."""
        behind = position - self.end
        if behind < 0:
            return self._tokens[position - self._start]
        if behind < len(rest):
            return rest[behind]
        return draft[behind - len(rest)]
