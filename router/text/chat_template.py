"""The model's chat template: messages into the text of a prompt."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

# The class that every tokenizer.json loads into; AutoTokenizer would import torch for its model registry.
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

from baton.engine.errors import InvalidRequest
from baton.router.errors import FieldError

Message = Mapping[str, Any]  # as the chat template sees it: role, content and whatever else the client gave
PLAIN_KEYS = frozenset({"role", "content"})
MAX_REASON_CHARS = 1000


class CompiledTemplate(Protocol):
    """What jinja makes of a template."""

    globals: Mapping[str, object]

    def new_context(self, variables: dict[str, object], shared: bool) -> object:
        """What the template sees; `shared`: the variables are all of it, and not copied."""

    def root_render_func(self, context: object) -> Iterable[str]:
        """The text in pieces."""


class ChatTemplate:
    """Owns the compiled template of one model."""

    def __init__(self, pretrained: PreTrainedTokenizerFast) -> None:
        """Raises what jinja raises for a text that is no template."""
        self._pretrained = pretrained
        self._reserved = frozenset({"self", "messages"}).union(
            inspect.signature(pretrained.apply_chat_template).parameters,
            inspect.signature(render_jinja_template).parameters,
        )
        self._special_tokens: Mapping[str, object] = dict(pretrained.special_tokens_map)
        self._has_developer = "developer" in str(pretrained.chat_template)
        self._compiled: CompiledTemplate | None = None
        self._known: Mapping[str, object] = {}  # variables that are the same in every prompt
        if isinstance(pretrained.chat_template, str):  # one of several by their names is known when it is asked for
            self._compile()
        elif not isinstance(pretrained.chat_template, dict | None):
            raise TypeError("chat_template is no text")

    def check(self, options: Mapping[str, object]) -> None:
        """Raises InvalidRequest if there is no template, or for options that are not for it."""
        taken = self._reserved.intersection(options)
        if taken:
            text = f"chat_template_kwargs must not set {', '.join(sorted(taken))}"
            raise FieldError("chat_template_kwargs", text)
        if self._pretrained.chat_template is None:
            raise InvalidRequest("the model has no chat template; use /v1/completions")

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        continue_final_message: bool,
        options: Mapping[str, Any],
    ) -> str:
        """The prompt. Raises InvalidRequest with the template's words; `options` are checked."""
        if not self._has_developer:
            messages = list(map(_with_system_role, messages))
        try:
            if not continue_final_message and messages and all(map(is_plain, messages)):
                text = self._render_plain(messages, add_generation_prompt, options)
            else:
                text = self._render_any(messages, add_generation_prompt, continue_final_message, options)
            if not text.isascii():
                text.encode()  # a template may make half a surrogate pair, which no tokenizer takes
        except Exception as error:  # a template is a program: it may fail at the client's messages in any way
            reason = str(error)[:MAX_REASON_CHARS].encode(errors="replace").decode() or type(error).__name__
            raise InvalidRequest(f"the chat template refuses the messages: {reason}") from error
        return text

    def _render_any(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        continue_final_message: bool,
        options: Mapping[str, Any],
    ) -> str:
        text = self._pretrained.apply_chat_template(
            [dict(message) for message in messages],
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
        """What `apply_chat_template` gives for messages in which it would find nothing to convert."""
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
        self._compiled = compiled  # last: another thread that sees it sees the rest too
        return compiled


def is_plain(message: Message) -> bool:
    """Whether it is a role and a text alone."""
    return message.keys() == PLAIN_KEYS and type(message["role"]) is str and type(message["content"]) is str


def _with_system_role(message: Message) -> Message:
    """Return a developer's message as a system message, which is what most models know it as."""
    return {**message, "role": "system"} if message.get("role") == "developer" else message
