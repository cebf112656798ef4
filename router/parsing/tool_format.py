"""The contract of a tool format: how a model writes calls, and how it is made to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from baton.router.parsing.base import Tool
from baton.router.parsing.lexer import Lexer, Reading
from baton.router.parsing.part_writer import PartWriter
from baton.router.parsing.structural_tag import Format


@dataclass(frozen=True, slots=True)
class CallReading:
    """Inputs of a format's reader for the calls of one output."""

    lexer: Lexer
    writer: PartWriter
    tools: Mapping[str, Tool]  # by name; a call may have another name


class ToolReader(Protocol):
    """Reader of the calls in one output."""

    def read(self, marker: str) -> Reading[frozenset[str]]:
        """Read what follows a marker that begins calls; empty: the beginning of an output.

        Returns the markers that may still come because of these calls, and are then dropped. Raises NotACall if no call
        follows; nothing is written then, and what was read since the marker is recorded by the lexer. It reads nothing
        that is not part of the call.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """A way to write calls."""

    begins: tuple[str, ...]  # markers that begin calls
    ends: tuple[str, ...]  # markers after calls, which are dropped there, and content elsewhere
    inner: tuple[str, ...] = ()  # further markers in calls
    values: tuple[str, ...] = ()  # those of them that a grammar can only write as text: xgrammar has them in its styles
    at_beginning: bool = False  # an output may begin with a call, without a marker
    reader: Callable[[CallReading], ToolReader]
    # The part of a structural tag with the calls of tools; the last two are `required` and `parallel` of `output_tag`.
    calls: Callable[[Sequence[Tool], bool, bool], Format]

    @property
    def markers(self) -> frozenset[str]:
        """The markers that may be tokens of the vocabulary."""
        return frozenset((*self.begins, *self.ends, *self.inner))
