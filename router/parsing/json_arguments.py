"""Calls as JSON objects, `{"name": ..., "arguments": {...}}`, whose arguments are passed on as they arrive."""

import re
from collections.abc import Callable

import orjson

from baton.router.parsing.lexer import WHITESPACE, Lexer, Markers, NotACall, Reading
from baton.router.parsing.part_writer import PartWriter

ARGUMENT_KEYS = ("arguments", "parameters")
IN_NAME = re.compile(r'["\\\n]')
IN_STRING = re.compile(r'["\\]')
SCALAR_END = " \t\r\n,]}"


class JsonReader:
    """Reader of JSON values in an output.

    It finds where a value ends, by its brackets and quotes, and passes on the text as the model wrote it. Whether that
    is JSON is checked at the end of the call.
    """

    def __init__(self, lexer: Lexer, ends: Markers) -> None:
        """`ends`: markers that end a value early; in text they do so only outside of strings."""
        self._lexer = lexer
        self._ends = ends
        first_chars = "".join(map(re.escape, sorted(ends.first_chars - set('"[{}]'))))
        self._outside = re.compile(rf'["{first_chars}]|[\[{{]+|[\]}}]+')
        self._scalar_end = re.compile(rf"[{re.escape(SCALAR_END)}{first_chars}]")

    def value(self, write: Callable[[str], None]) -> Reading[bool]:
        """Write the text of the value that comes next. Return whether it ends by itself, not by a marker."""
        first = yield from self._lexer.peek()
        if first in ("{", "["):
            return (yield from self._nested(write))
        if first == '"':
            write(self._lexer.take(self._lexer.start + 1))
            return (yield from self._string(write))
        return (yield from self._scalar(write))

    def text(self) -> Reading[str]:
        """Read a string, and return its value. Raises NotACall if it is none, or has a line break."""
        lexer, pieces = self._lexer, ['"']
        if not (yield from lexer.literal('"')):
            raise NotACall
        while (yield from lexer.more()):
            match = IN_NAME.search(lexer.text, lexer.start)
            pieces.append(lexer.take(len(lexer.text) if match is None else match.start()))
            if match is None:
                continue
            if match.group() == "\n":
                break
            pieces.append(lexer.take(match.end()))
            if match.group() == '"':
                return _decoded("".join(pieces))
            if (yield from lexer.more()):
                pieces.append(lexer.take(lexer.start + 1))
        raise NotACall

    def _nested(self, write: Callable[[str], None]) -> Reading[bool]:
        lexer, depth = self._lexer, 0
        while (yield from lexer.more()):
            match = self._outside.search(lexer.text, lexer.start)
            if match is None:
                write(lexer.take(len(lexer.text)))
                continue
            char = match.group()[0]
            if char in "[{":
                depth += match.end() - match.start()
                write(lexer.take(match.end()))
            elif char in "]}":
                num_closed = min(depth, match.end() - match.start())
                write(lexer.take(match.start() + num_closed))
                depth -= num_closed
                if not depth:
                    return True
            elif char == '"':
                write(lexer.take(match.end()))
                if not (yield from self._string(write)):
                    return False
            else:
                write(lexer.take(match.start()))
                if (yield from lexer.next_marker(self._ends)) is not None:
                    return False
                write(lexer.take(lexer.start + 1))
        return False

    def _string(self, write: Callable[[str], None]) -> Reading[bool]:
        """Write the rest of a string."""
        lexer = self._lexer
        while (yield from lexer.more()):
            match = IN_STRING.search(lexer.text, lexer.start)
            if match is None:
                write(lexer.take(len(lexer.text)))
                continue
            write(lexer.take(match.end()))
            if match.group() == '"':
                return True
            if not (yield from lexer.more()):
                return False
            write(lexer.take(lexer.start + 1))  # the escaped character
        return False

    def _scalar(self, write: Callable[[str], None]) -> Reading[bool]:
        lexer, is_empty = self._lexer, True
        while (yield from lexer.more()):
            match = self._scalar_end.search(lexer.text, lexer.start)
            end = len(lexer.text) if match is None else match.start()
            if end > lexer.start:
                write(lexer.take(end))
                is_empty = False
            if match is None:
                continue
            if match.group() in SCALAR_END:
                return not is_empty
            if (yield from lexer.next_marker(self._ends)) is not None:
                return False
            write(lexer.take(lexer.start + 1))
            is_empty = False
        return False


class JsonCallReader:
    """Reader of calls that are JSON objects."""

    def __init__(self, lexer: Lexer, writer: PartWriter, ends: Markers, needs_arguments: bool = False) -> None:
        """`ends`: as of `JsonReader`. `needs_arguments`: an object without arguments is no call."""
        self._lexer = lexer
        self._writer = writer
        self._json = JsonReader(lexer, ends)
        self._needs_arguments = needs_arguments

    def call(self) -> Reading[bool]:
        """Read one call. Return whether its object is complete, so that text after it can be trusted to be outside.

        Arguments in front of the name are held back until the name is known; missing arguments are an empty object;
        other members are dropped. Raises NotACall if the object has no name, in which case nothing was written.
        """
        lexer, writer = self._lexer, self._writer
        name: str | None = None
        early: list[str] | None = None  # arguments in front of the name
        is_call = False  # the name is known, and with `needs_arguments` the arguments have begun
        has_arguments = False
        yield from lexer.skip()
        if not (yield from lexer.literal("{")):
            raise NotACall
        yield from lexer.skip()
        has_member = is_complete = (yield from lexer.peek()) == '"'
        while has_member:
            key = yield from self._key(is_call)
            if key is None:
                is_complete = False
                break
            if key == "name" and name is None:
                name = yield from self._name()
            elif key in ARGUMENT_KEYS and not has_arguments:
                has_arguments = True
                if name is None:
                    early = []
                    is_complete = yield from self._json.value(early.append)
                else:
                    if not is_call:
                        self._start(name, "")
                        is_call = True
                    is_complete = yield from self._json.value(writer.arguments)
            else:
                is_complete = yield from self._json.value(_drop)
            if name is not None and not is_call and (has_arguments or not self._needs_arguments):
                self._start(name, "".join(early or ()))
                is_call = True
            has_member = is_complete and (yield from self._comma())
        if is_complete:
            is_complete = yield from lexer.literal("}")
        if not is_call:
            raise NotACall
        if not has_arguments and is_complete:
            writer.arguments("{}")
        writer.end_call()
        return is_complete

    def _start(self, name: str, arguments: str) -> None:
        self._lexer.recorded()
        self._writer.start_call(name)
        self._writer.arguments(arguments)

    def _key(self, is_call: bool) -> Reading[str | None]:
        """Read a key and its colon. If there is none: return None if the call has begun, and raise NotACall if not."""
        try:
            key = yield from self._json.text()
            yield from self._lexer.skip()
            if not (yield from self._lexer.literal(":")):
                raise NotACall
            yield from self._lexer.skip()
        except NotACall:
            if is_call:
                return None
            raise
        return key

    def _name(self) -> Reading[str]:
        name = yield from self._json.text()
        if not name:
            raise NotACall
        return name

    def _comma(self) -> Reading[bool]:
        yield from self._lexer.skip()
        if not (yield from self._lexer.literal(",")):
            return False
        yield from self._lexer.skip()
        return True


def _decoded(text: str) -> str:
    try:
        return str(orjson.loads(text))
    except ValueError:
        raise NotACall from None


def _drop(text: str) -> None:
    """Drop text of a member that is no part of the call."""


def read_delimited(lexer: Lexer, write: Callable[[str], None], ends: Markers, fence: str = "") -> Reading[None]:
    """Write arguments in front of a marker, without white space around them; none at all are an empty object.

    In a JSON object, markers in text count only outside of strings. fence: text that may follow the object.
    """
    yield from lexer.skip()
    if (yield from lexer.peek()) == "{":
        yield from JsonReader(lexer, ends).value(write)
        yield from lexer.skip()
        if fence:
            yield from lexer.literal(fence)
    elif (yield from lexer.next_marker(ends)) is not None:
        write("{}")
        return
    trimmed = Trimmed(write)
    yield from lexer.before(ends, trimmed.write)


class Trimmed:
    """Texts that are passed on without the white space at their end."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._held: list[str] = []

    def write(self, text: str) -> None:
        """Pass on the text, apart from the white space at its end."""
        end = len(text.rstrip(WHITESPACE))
        if end:
            self._write("".join((*self._held, text[:end])))
            self._held = []
        self._held.append(text[end:])
