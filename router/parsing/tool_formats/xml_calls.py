"""Calls whose parameters are XML-like elements: Qwen3-Coder, MiniMax M2, GLM 4.5 and DeepSeek V3.2."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from baton.router.parsing.base import Tool
from baton.router.parsing.lexer import NotACall, Reading
from baton.router.parsing.structural_tag import Format
from baton.router.parsing.tool_format import CallReading, ToolFormat, ToolReader
from baton.router.parsing.tool_formats.xml_values import ANY_TYPE, ValueType, ValueWriter, parameter_type

STRING = ValueType(frozenset({"string"}))
NO_STRING = ValueType(ANY_TYPE - {"string"})
NAME = re.compile(r"""[^\n<>"]*""")


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlSyntax:
    """Markers of a call.

    A value ends at `value_end`, so that it may contain all the others. If that is missing, it ends at the end
    of the call in front of a marker of a section or another call.
    """

    section_begin: str  # in front of one or more calls
    call_begin: str = ""  # in front of the name; empty: the section's, which has one call
    name_end: str = ""  # empty: the name ends in front of a parameter or `section_end`
    key_begin: str
    key_ends: Mapping[str, ValueType | None]  # None: the type is that of the parameter's schema
    value_begin: str = ""  # between key and value; may be missing
    value_end: str
    call_end: str = ""
    section_end: str
    trims_lines: bool = False

    @property
    def begins(self) -> tuple[str, ...]:
        """The markers that begin calls: a section, and a call without one."""
        return tuple(filter(None, (self.section_begin, self.call_begin)))

    @property
    def ends(self) -> tuple[str, ...]:
        """The markers after calls."""
        return tuple(filter(None, (self.call_end, self.section_end)))

    def tool_format(self, calls: Callable[[Sequence[Tool], bool, bool], Format]) -> ToolFormat:
        """Return the format; `calls`: as in `ToolFormat`."""
        values = tuple(filter(None, (self.key_begin, *self.key_ends, self.value_begin, self.value_end)))
        return ToolFormat(
            begins=self.begins, ends=self.ends, inner=values, values=values, reader=self.reader, calls=calls
        )

    def reader(self, reading: CallReading) -> ToolReader:
        """Return a reader for one output."""
        return _XmlCallReader(self, reading)


class _XmlCallReader:
    """Reader of the calls in one output."""

    def __init__(self, syntax: XmlSyntax, reading: CallReading) -> None:
        self._syntax = syntax
        self._lexer = lexer = reading.lexer
        self._writer = reading.writer
        self._tools = reading.tools
        self._after_name = lexer.markers(syntax.key_begin, syntax.section_end)
        self._key_ends = lexer.markers(*syntax.key_ends)
        self._value_end = lexer.markers(syntax.value_end)
        self._value_ends = lexer.markers(syntax.value_end, syntax.call_end or syntax.section_end)
        self._after_call = lexer.markers(*syntax.begins, syntax.section_end)
        self._ends = lexer.markers(*syntax.ends)

    def read(self, marker: str) -> Reading[frozenset[str]]:
        """Read the call after a marker; see `ToolReader`."""
        syntax, lexer, writer = self._syntax, self._lexer, self._writer
        if syntax.call_begin and marker == syntax.section_begin:
            yield from lexer.skip()
            if not (yield from lexer.literal(syntax.call_begin)):
                raise NotACall
        name = yield from self._name()
        lexer.recorded()
        writer.start_call(name)
        writer.arguments("{")
        if (yield from self._parameters(name)):
            writer.arguments("}")
        writer.end_call()
        writer.content(lexer.recorded())  # of a parameter that is none
        return frozenset(syntax.ends)

    def _name(self) -> Reading[str]:
        lexer, end = self._lexer, self._syntax.name_end
        yield from lexer.skip()
        name = (yield from lexer.run(NAME)).strip()
        if end:
            is_ended = yield from lexer.literal(end)
        else:
            yield from lexer.skip()
            is_ended = (yield from lexer.next_marker(self._after_name)) is not None
        if not name or not is_ended:
            raise NotACall
        return name

    def _parameters(self, name: str) -> Reading[bool]:
        """Write the parameters, and return whether they are complete."""
        syntax, lexer, writer = self._syntax, self._lexer, self._writer
        tool = self._tools.get(name)
        separator = ""
        while True:
            yield from lexer.skip()
            lexer.record("")
            if not (yield from lexer.literal(syntax.key_begin)):
                return not lexer.is_at_end
            key = (yield from lexer.run(NAME)).strip()
            key_end = yield from lexer.one_of(self._key_ends)
            if not key or key_end is None:
                return False
            lexer.recorded()
            writer.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            separator = ", "
            if syntax.value_begin:
                yield from self._skip_to(syntax.value_begin)
            value_type, given = parameter_type(tool, key), syntax.key_ends[key_end]
            if given is not None:
                value_type = replace(value_type, types=given.types)
            value = ValueWriter(writer.arguments, value_type, syntax.trims_lines)
            is_complete, is_last = yield from self._value(value)
            if not is_complete:
                value.cut()
                return False
            value.end()
            if is_last:
                return True

    def _value(self, value: ValueWriter) -> Reading[tuple[bool, bool]]:
        """Read a value. Return whether it is complete, and whether the call's end was read instead of its end."""
        lexer, syntax = self._lexer, self._syntax
        while (marker := (yield from lexer.before(self._value_ends, value.add))) is not None:
            if marker == syntax.value_end:
                yield from lexer.one_of(self._value_end)
                return True, False
            lexer.record("")
            yield from lexer.one_of(self._value_ends)
            yield from lexer.skip()
            follows = yield from lexer.next_marker(self._after_call)
            text = lexer.recorded()
            if follows is not None:
                return True, True
            value.add(text)
        return False, False

    def _skip_to(self, marker: str) -> Reading[None]:
        """Read a marker, and white space in front of it, if they come next."""
        yield from self._lexer.skip()
        yield from self._lexer.literal(marker)
