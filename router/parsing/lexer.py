"""The output of a model as a stream of text and markers, which the formats read as it arrives.

A format is written as generators: each `yield` waits for the next piece. `yield from lexer.until(...)` and the other
methods of `Lexer` return once the output decides their result, so a format reads like the grammar that it accepts.
"""

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from baton.router.parsing.base import Piece

T = TypeVar("T")
Reading = Generator[None, None, T]  # yields where it needs the next piece, and returns T

WHITESPACE = " \t\r\n"


class NotACall(Exception):
    """The text since the marker of a call is no call, and therefore content."""


class Markers:
    """Markers that a format looks for in one of its states.

    A marker that is one token of the vocabulary counts only as that token; the others are found in text. No marker may
    be part of another one.
    """

    def __init__(self, texts: Iterable[str], single_tokens: frozenset[str]) -> None:
        all_texts = sorted(set(texts))
        assert not any(one in other for one in all_texts for other in all_texts if one != other)
        self.tokens = frozenset(all_texts) & single_tokens
        self._in_text = [text for text in all_texts if text not in self.tokens]
        self._pattern = re.compile("|".join(map(re.escape, self._in_text))) if self._in_text else None
        self._prefixes = frozenset(text[:end] for text in self._in_text for end in range(1, len(text)))
        self._max_held = max(map(len, self._prefixes), default=0)

    @property
    def first_chars(self) -> frozenset[str]:
        """The characters with which the markers in text begin."""
        return frozenset(text[0] for text in self._in_text)

    def search(self, text: str, start: int) -> re.Match[str] | None:
        """Return the first marker in the text from `start` on."""
        return self._pattern.search(text, start) if self._pattern is not None else None

    def match(self, text: str, start: int) -> re.Match[str] | None:
        """Return the marker in the text at `start`."""
        return self._pattern.match(text, start) if self._pattern is not None else None

    def num_held(self, text: str, start: int) -> int:
        """Return how many characters at the end of the text, from `start` on, may begin a marker."""
        for length in range(min(self._max_held, len(text) - start), 0, -1):
            if text[-length:] in self._prefixes:
                return length
        return 0

    def is_prefix(self, text: str) -> bool:
        """Return whether the text is the beginning of a marker, but not all of it."""
        return text in self._prefixes


class Lexer:
    """Unread text of one output, and the token that follows it."""

    def __init__(self, single_tokens: frozenset[str]) -> None:
        """`single_tokens`: markers that are one token of the vocabulary."""
        self.single_tokens = single_tokens
        self.stops: frozenset[str] = frozenset()  # markers that, as tokens, end all methods but `until`
        self.text, self.start = "", 0  # unread from `start` on
        self._token: str | None = None  # comes after the text
        self._has_ended = False
        self._recorded: list[str] | None = None
        self._literals: dict[str, Markers] = {}

    def markers(self, *texts: str) -> Markers:
        """Return the markers as this vocabulary writes them."""
        return Markers(texts, self.single_tokens)

    def feed(self, piece: Piece) -> None:
        """Add the next piece; the earlier ones have been read as far as they can be."""
        if piece.marker is not None and piece.marker in self.single_tokens:
            assert self._token is None
            self._token = piece.marker
        else:
            self._append(piece.text)

    def end(self) -> None:
        """Note that no piece follows."""
        self._has_ended = True

    def record(self, begin: str) -> None:
        """Record what is read from now on, after the text `begin`."""
        self._recorded = [begin]

    def recorded(self) -> str:
        """Return the recorded text, and record no longer."""
        text = "".join(self._recorded or ())
        self._recorded = None
        return text

    def until(self, markers: Markers, write: Callable[[str], None]) -> Reading[str | None]:
        """Write the text in front of the next marker, and read the marker. Return it; None at the end of the output."""
        marker = yield from self.before(markers, write)
        if marker is not None:
            self._read_marker(marker, markers)
        return marker

    def before(self, markers: Markers, write: Callable[[str], None]) -> Reading[str | None]:
        """Write the text in front of the next marker. Return the marker, which stays unread; None at the end."""
        while True:
            match = markers.search(self.text, self.start)
            if match is not None:
                self._write(match.start(), write)
                return match.group()
            if self._token in markers.tokens:
                self._write(len(self.text), write)
                return self._token
            if self._token is not None:
                self._token_to_text()
                continue
            if self._has_ended:
                self._write(len(self.text), write)
                return None
            self._write(len(self.text) - markers.num_held(self.text, self.start), write)
            yield

    def text_before(self, markers: Markers) -> Reading[str]:
        """Return the text in front of the next marker, which stays unread."""
        texts: list[str] = []
        yield from self.before(markers, texts.append)
        return "".join(texts)

    def more(self) -> Reading[bool]:
        """Wait for unread text. Return False in front of a token in `stops`, and at the end of the output."""
        while self.start == len(self.text):
            if self._token in self.stops or self._has_ended:
                return False
            if self._token is not None:
                self._token_to_text()
            else:
                yield
        return True

    def take(self, end: int) -> str:
        """Read the text up to the index `end` of `text`."""
        text = self.text[self.start : end]
        self.start = end
        if self._recorded is not None:
            self._recorded.append(text)
        return text

    @property
    def is_at_end(self) -> bool:
        """Whether all of the output is read, and no piece follows."""
        return self._has_ended and self.start == len(self.text) and self._token is None

    def run(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Read characters as long as they match `pattern`, which is a repeated class of characters."""
        texts: list[str] = []
        while (yield from self.more()):
            match = pattern.match(self.text, self.start)
            if match is not None and match.end() > self.start:
                texts.append(self.take(match.end()))
            if self.start < len(self.text):
                break
        return "".join(texts)

    def peek(self) -> Reading[str]:
        """Return the next character without reading it; empty if `more` is False."""
        return self.text[self.start] if (yield from self.more()) else ""

    def skip(self, chars: str = WHITESPACE) -> Reading[None]:
        """Read the characters that are in `chars`."""
        while (yield from self.peek()) and self.text[self.start] in chars:
            end = self.start + 1
            while end < len(self.text) and self.text[end] in chars:
                end += 1
            self.take(end)

    def literal(self, text: str) -> Reading[bool]:
        """Read the text if it comes next, and return whether it does."""
        if text not in self._literals:
            self._literals[text] = self.markers(text)
        return (yield from self.one_of(self._literals[text])) is not None

    def one_of(self, markers: Markers) -> Reading[str | None]:
        """Read the marker that comes next, and return it; None, without effect, if none does."""
        marker = yield from self.next_marker(markers)
        if marker is not None:
            self._read_marker(marker, markers)
        return marker

    def next_marker(self, markers: Markers) -> Reading[str | None]:
        """Return the marker that comes next, without reading it; None if none does."""
        while True:
            match = markers.match(self.text, self.start)
            if match is not None:
                return match.group()
            rest = self.text[self.start : self.start + 64]
            if not rest and self._token in markers.tokens:
                return self._token
            if rest and not markers.is_prefix(rest):
                return None
            if self._token in self.stops or self._has_ended:
                return None
            if self._token is not None:
                self._token_to_text()
            else:
                yield

    def _append(self, text: str) -> None:
        self.text, self.start = self.text[self.start :] + text, 0

    def _token_to_text(self) -> None:
        assert self._token is not None
        token, self._token = self._token, None
        self._append(token)

    def _write(self, end: int, write: Callable[[str], None]) -> None:
        if end > self.start:
            write(self.take(end))

    def _read_marker(self, marker: str, markers: Markers) -> None:
        if marker not in markers.tokens:
            self.take(self.start + len(marker))
            return
        self._token = None
        if self._recorded is not None:
            self._recorded.append(marker)
