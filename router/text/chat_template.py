"""The model's chat template, which renders messages to the text of a prompt."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

# The class that every tokenizer.json loads into; AutoTokenizer would import torch for its model registry.
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

from baton.engine.errors import InvalidRequest
from baton.router.errors import FieldError
from baton.router.text.harmony_messages import EFFORTS, described, harmony_messages, is_harmony

Message = Mapping[str, Any]  # input of the chat template: role, content and the client's other fields
PLAIN_KEYS = frozenset({"role", "content"})
MAX_REASON_CHARS = 1000


class CompiledTemplate(Protocol):
    """A template compiled by jinja."""

    globals: Mapping[str, object]

    def new_context(self, variables: dict[str, object], shared: bool) -> object:
        """Return a context with the variables; `shared`: use them without a copy and without the globals."""

    def root_render_func(self, context: object) -> Iterable[str]:
        """Yield the text in pieces."""


class ChatTemplate:
    """The compiled chat template of one model."""

    def __init__(self, pretrained: PreTrainedTokenizerFast) -> None:
        """Raise jinja's error for an invalid template, TypeError if it is not a string."""
        self._pretrained = pretrained
        self._reserved = frozenset({"self", "messages"}).union(
            inspect.signature(pretrained.apply_chat_template).parameters,
            inspect.signature(render_jinja_template).parameters,
        )
        self._special_tokens: Mapping[str, object] = dict(pretrained.special_tokens_map)
        self.source = _source(pretrained.chat_template)
        self._has_developer = "developer" in self.source
        self._is_harmony = is_harmony(self.source)
        self._compiled: CompiledTemplate | None = None
        self._known: Mapping[str, object] = {}  # variables that are the same in every prompt
        if isinstance(pretrained.chat_template, str):  # one of several named templates is compiled when it is used
            self._compile()
        elif not isinstance(pretrained.chat_template, dict | None):
            raise TypeError("chat_template is not a string")

    def has_variable(self, name: str) -> bool:
        """Return whether the template mentions a name."""
        return re.search(rf"\b{re.escape(name)}\b", self.source) is not None

    def highest_effort(self, effort: str) -> str:
        """Return the reasoning effort; if it is above those that the model knows, the highest of them."""
        return EFFORTS[-1] if self._is_harmony and effort not in EFFORTS else effort

    def check(self, options: Mapping[str, object]) -> None:
        """Raise InvalidRequest if there is no template, or for options that are reserved or that it does not know."""
        taken = self._reserved.intersection(options)
        if taken:
            text = f"chat_template_kwargs must not set {', '.join(sorted(taken))}"
            raise FieldError("chat_template_kwargs", text)
        if self._pretrained.chat_template is None:
            raise InvalidRequest("the model has no chat template; use /v1/completions")
        effort = options.get("reasoning_effort")
        if self._is_harmony and effort is not None and effort not in EFFORTS:
            text = f"reasoning_effort must be {', '.join(EFFORTS[:-1])} or {EFFORTS[-1]} with this model"
            raise FieldError("reasoning_effort", text)

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        continue_final_message: bool,
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, object]] = (),
    ) -> str:
        """Return the prompt. Call `check` for `options` first. Raises InvalidRequest with the template's message."""
        if not self._has_developer:
            messages = list(map(_with_system_role, messages))
        try:
            if self._is_harmony:
                messages, tools = harmony_messages(messages), list(map(described, tools))
            if not continue_final_message and not tools and messages and all(map(is_plain, messages)):
                text = self._render_plain(messages, add_generation_prompt, options)
            else:
                text = self._render_any(messages, add_generation_prompt, continue_final_message, options, tools)
            if not text.isascii():
                text.encode()  # raises for a lone surrogate, which tokenizers do not accept
        except Exception as error:  # a template is a program: it may fail on the client's messages in any way
            reason = str(error)[:MAX_REASON_CHARS].encode(errors="replace").decode() or type(error).__name__
            raise InvalidRequest(f"the chat template rejects the messages: {reason}") from error
        return text

    def _render_any(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        continue_final_message: bool,
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, object]],
    ) -> str:
        text = self._pretrained.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **options,
        )
        assert isinstance(text, str)
        return text

    def _render_plain(
        self, messages: Sequence[Message], add_generation_prompt: bool, options: Mapping[str, object]
    ) -> str:
        """Render messages for which `apply_chat_template` would have nothing to convert, with the same result."""
        compiled = self._compiled or self._compile()
        variables = {
            **self._known,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            **options,
        }
        return "".join(compiled.root_render_func(compiled.new_context(variables, shared=True)))

    def _compile(self) -> CompiledTemplate:
        compiled: CompiledTemplate = _compile_jinja_template(self._pretrained.get_chat_template())
        self._known = {**compiled.globals, "tools": None, "documents": None, **self._special_tokens}
        self._compiled = compiled  # last, as other threads check it first
        return compiled


def _source(template: object) -> str:
    """Return the text of a template, of all templates if there are several with names; empty if there is none."""
    if isinstance(template, dict):
        return "\n".join(map(str, template.values()))
    return "" if template is None else str(template)


def is_plain(message: Message) -> bool:
    """Return whether a message has only a role and a text."""
    return message.keys() == PLAIN_KEYS and type(message["role"]) is str and type(message["content"]) is str


def _with_system_role(message: Message) -> Message:
    """Convert a developer message to a system message: most models have no developer role."""
    return {**message, "role": "system"} if message.get("role") == "developer" else message
