"""Conversion of bodies to chat requests, as the routes do it, with a chosen chat template and format of outputs."""

from functools import cache
from typing import Any

import orjson
from transformers import PreTrainedTokenizerFast

from baton.router.anthropic.chat_request import chat_request
from baton.router.anthropic.request import MessagesRequest
from baton.router.http.body_reader import read_body
from baton.router.openai.chat import ChatRequest
from baton.router.output.format import OutputFormat
from baton.router.text.chat_template import ChatTemplate
from tests.unit.router.tokenizer_variants import make_tokenizer

HELLO: Any = [{"role": "user", "content": "hello"}]
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
THINKING = PLAIN + "{% if enable_thinking %}<think>{% endif %}"
EFFORT = PLAIN + "{{ reasoning_effort }}"
TEXT = OutputFormat(None, None, {})
REASONING = OutputFormat("hermes", "qwen3", {})


@cache
def template_of(source: str) -> ChatTemplate:
    """Return a chat template with this source."""
    return ChatTemplate(PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(), chat_template=source))


def read(**fields: Any) -> MessagesRequest:
    """Return a validated body with a short message unless there are others."""
    return read_body(MessagesRequest, orjson.dumps({"max_tokens": 5, "messages": HELLO, **fields}))


def converted(source: str = PLAIN, form: OutputFormat = TEXT, **fields: Any) -> ChatRequest:
    """Return the chat request of a body with these fields."""
    return chat_request(read(**fields), template_of(source), form)[0]


def shown(**fields: Any) -> list[Any]:
    """Return the messages that the chat template gets."""
    request = converted(**fields)
    return [dict(each) for each in request.prompt(request.tool_use(), template_of(PLAIN)).messages]


def text(value: str, **more: Any) -> dict[str, Any]:
    """Return a block of text."""
    return {"type": "text", "text": value, **more}


def call(call_id: str, name: str = "f", **given: Any) -> dict[str, Any]:
    """Return a block with a call."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def result(call_id: str, content: Any = "done", **more: Any) -> dict[str, Any]:
    """Return a block with the result of a call."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def tool(name: str = "f", **more: Any) -> dict[str, Any]:
    """Return the definition of a tool without properties."""
    return {"name": name, "input_schema": {"type": "object", "properties": {}}, **more}
