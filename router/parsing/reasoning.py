"""How models mark their reasoning."""

from dataclasses import dataclass

from baton.router.parsing.lexer import Lexer, Reading
from baton.router.parsing.part_writer import PartWriter


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Markers around the reasoning, which comes in front of the answer and the calls.

    The opening marker is optional in outputs, since many chat templates end with it. White space next to the markers is
    dropped. Without the closing marker, the whole output is reasoning.
    """

    begin: str
    end: str
    # An output is reasoning from its beginning if its prompt does not say. False: only after the opening marker.
    is_default: bool
    # Tool formats whose calls end the reasoning if the model does not close it. All other calls in it are reasoning.
    ended_by_calls_of: frozenset[str] = frozenset()

    @property
    def markers(self) -> frozenset[str]:
        """The markers that may be tokens of the vocabulary."""
        return frozenset({self.begin, self.end})

    def is_open(self, prompt: str) -> bool | None:
        """Return whether the end of a rendered prompt has left the reasoning open or closed; None if it does not say.

        `prompt`: text that ends as the prompt ends; a few hundred characters are enough.
        """
        text = prompt.rstrip()
        if text.endswith(self.begin):
            return True
        return False if text.endswith(self.end) else None


def begins_reasoning(lexer: Lexer, writer: PartWriter, form: ReasoningFormat, is_open: bool | None) -> Reading[bool]:
    """Read the opening marker, if there is one, and return whether the output begins with reasoning.

    is_open: what the prompt says, as in `ReasoningFormat.is_open`.
    """
    if is_open is False:
        return False
    lexer.record("")
    yield from lexer.skip()
    has_begun = yield from lexer.literal(form.begin)
    white_space = lexer.recorded()
    if has_begun:
        return True
    is_reasoning = form.is_default if is_open is None else is_open
    (writer.reasoning if is_reasoning else writer.content)(white_space)
    return is_reasoning


def _thinking(is_default: bool, *ended_by_calls_of: str) -> ReasoningFormat:
    return ReasoningFormat("<think>", "</think>", is_default, frozenset(ended_by_calls_of))


# By the names of vLLM's `--reasoning-parser`. `openai_gptoss` is part of the tool format `openai`.
REASONING_FORMATS = {
    "deepseek_r1": _thinking(True),
    "deepseek_v3": _thinking(False),
    "deepseek_v4": _thinking(False),
    "qwen3": _thinking(False, "qwen3_coder", "qwen3_xml"),
    "glm45": _thinking(False),
    "glm47": _thinking(False),
    "kimi_k2": _thinking(False, "kimi_k2"),
    "minimax_m2": _thinking(True),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]", is_default=False),
}
