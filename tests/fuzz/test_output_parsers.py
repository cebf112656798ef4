"""Parsers of reasoning and calls, on arbitrary outputs in arbitrary pieces."""

from hypothesis import strategies as st

from tests.fuzz.fuzzing import Fuzzing
from tests.unit.router.parsing.arbitrary_outputs import TOOLS, formats, outputs
from tests.unit.router.parsing.outputs import parse, pieces_of


@st.composite
def inputs(draw: st.DrawFn) -> tuple[str | None, str | None, str, int]:
    """Formats, an output, and the size of its pieces in characters."""
    tool_format, reasoning_format = draw(formats())
    return tool_format, reasoning_format, draw(outputs(tool_format, reasoning_format)), draw(st.integers(1, 12))


def test_any_output_is_parsed(fuzzing: Fuzzing) -> None:
    def check(given: tuple[str | None, str | None, str, int]) -> None:
        tool_format, reasoning_format, text, max_chars = given
        whole = parse(pieces_of(text), tool_format, reasoning_format, TOOLS)
        assert parse(pieces_of(text, max_chars=max_chars), tool_format, reasoning_format, TOOLS) == whole
        for part in (whole.content, whole.reasoning, *(call.name + call.arguments for call in whole.calls)):
            part.encode()

    fuzzing.run(inputs(), check, 100)
