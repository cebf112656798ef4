"""The parts of one completion, read from its tokens: reasoning, content and tool calls."""

import logging
from collections import deque
from collections.abc import Mapping

from baton.router.parsing.base import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    OutputParser,
    OutputPart,
    Piece,
    Reasoning,
)

logger = logging.getLogger(__name__)


class PartsReader:
    """Parser of one completion, with the text that stop strings hold back, and counts of calls and reasoning tokens."""

    def __init__(
        self,
        parser: OutputParser,
        markers: Mapping[int, str],
        in_reasoning: bool,
        with_calls: bool,
        max_calls: int | None,
        request_id: str,
    ) -> None:
        """`markers`: by token id. `in_reasoning`: the prompt ends in the reasoning.

        `with_calls`: otherwise the arguments of calls, which Harmony always marks, are content. `max_calls` None: any
        number. `request_id`: for the log.
        """
        self.markers = markers
        self.num_calls = 0
        self.is_full = False  # another call has begun, although there may be no more
        self._parser = parser
        self._in_reasoning = in_reasoning
        self._has_content = False
        self._with_calls = with_calls
        self._max_calls = max_calls
        self._request_id = request_id
        self._held: deque[Piece] = deque()
        self._num_released = 0  # characters of a marker at the front that is not released as a whole

    def hold(self, piece: Piece) -> None:
        """Add a piece, whose text is not released yet."""
        self._held.append(piece)

    def release(self, num_chars: int) -> list[OutputPart]:
        """Return the parts that the next characters add. A marker is released as a whole."""
        self._num_released += num_chars
        released: list[Piece] = []
        while self._num_released and (len(self._held[0].text) <= self._num_released or not self._held[0].marker):
            released.append(self._take())
        return self._checked(self._parser.push(released)) if released else []

    def flush(self) -> list[OutputPart]:
        """Return the parts that were held back, at the end of the output. A part of a marker is text."""
        if self.is_full:
            return []
        parts = self._checked(self._parser.push([self._take()])) if self._num_released else []
        return parts + ([] if self.is_full else self._checked(self._parser.flush()))

    def _take(self) -> Piece:
        """Remove and return the released text of the first piece."""
        piece = self._held.popleft()
        if len(piece.text) > self._num_released:
            self._held.appendleft(Piece(piece.text[self._num_released :]))
            piece = Piece(piece.text[: self._num_released])
        self._num_released -= len(piece.text)
        return piece

    @property
    def in_reasoning(self) -> bool:
        """Whether the last released text belongs to the reasoning."""
        return self._in_reasoning and not self._has_content

    def _checked(self, parts: list[OutputPart]) -> list[OutputPart]:
        """Count the parts. Drops a call that is one too many and what follows it."""
        if not self._with_calls:
            parts = [_as_content(part) for part in parts if not isinstance(part, CallStart | CallEnd)]
        for place, part in enumerate(parts):
            if isinstance(part, Reasoning):
                self._in_reasoning = True
                continue
            self._has_content = True
            if isinstance(part, CallEnd) and not part.is_valid_json:
                text = "%s: the arguments of a tool call are no JSON object; the client gets them as they are"
                logger.warning(text, self._request_id)
            if isinstance(part, CallStart):
                if self.num_calls == self._max_calls:
                    self.is_full = True
                    return parts[:place]
                self.num_calls += 1
        return parts


def _as_content(part: OutputPart) -> OutputPart:
    return Content(part.text) if isinstance(part, CallArguments) else part


def text_of(part: OutputPart) -> str:
    """Return the text of a part: of the beginning of a call its name, of the end nothing."""
    if isinstance(part, CallEnd):
        return ""
    return part.name if isinstance(part, CallStart) else part.text
