"""Calls in sections, whose names and JSON arguments stand between markers: DeepSeek V3 and Kimi K2."""

from collections.abc import Callable
from dataclasses import dataclass

from baton.router.parsing.json_arguments import read_delimited
from baton.router.parsing.lexer import NotACall, Reading
from baton.router.parsing.tool_format import CallReading, ToolReader


@dataclass(frozen=True, slots=True)
class CallName:
    """The name of a call, and the id that the model gave to it."""

    name: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedSyntax:
    """Markers of a section with calls."""

    section_begin: str
    call_begin: str
    prefix: tuple[str, ...] = ()  # text and markers in front of the name
    name_end: str
    name_of: Callable[[str], CallName]
    fences: tuple[str, str] = ("", "")  # text around the arguments
    call_end: str
    section_end: str

    @property
    def begins(self) -> tuple[str, str]:
        """The markers that begin calls: a section, and a call without one."""
        return self.section_begin, self.call_begin

    @property
    def ends(self) -> tuple[str, str]:
        """The markers after calls."""
        return self.call_end, self.section_end

    def reader(self, reading: CallReading) -> ToolReader:
        """Return a reader for one output."""
        return _MarkedCallReader(self, reading)


class _MarkedCallReader:
    """Reader of the calls in one output."""

    def __init__(self, syntax: MarkedSyntax, reading: CallReading) -> None:
        self._syntax = syntax
        self._lexer = reading.lexer
        self._writer = reading.writer
        markers = {*syntax.begins, *syntax.ends}
        self._ends = reading.lexer.markers(*markers)
        self._name_ends = reading.lexer.markers(*markers, syntax.name_end, *({"\n"} - {syntax.name_end}))

    def read(self, marker: str) -> Reading[frozenset[str]]:
        """Read the call after a marker; see `ToolReader`."""
        syntax, lexer, writer = self._syntax, self._lexer, self._writer
        if marker == syntax.section_begin:
            yield from lexer.skip()
            if not (yield from lexer.literal(syntax.call_begin)):
                raise NotACall
        for text in syntax.prefix:
            if not (yield from lexer.literal(text)):
                raise NotACall
        name = syntax.name_of((yield from lexer.text_before(self._name_ends)).strip())
        if not name.name or not (yield from lexer.literal(syntax.name_end)):
            raise NotACall
        lexer.recorded()
        writer.start_call(name.name, name.call_id)
        opening, closing = syntax.fences
        if opening:
            yield from lexer.skip()
            yield from lexer.literal(opening)
        yield from read_delimited(lexer, writer.arguments, self._ends, closing)
        writer.end_call()
        return frozenset({syntax.call_end, syntax.section_end})
