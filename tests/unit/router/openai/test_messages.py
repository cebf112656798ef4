"""Texts of messages for the chat template."""

from typing import Any

import orjson
import pytest

from baton.router.http.body_reader import read_body
from baton.router.openai.chat import ChatRequest
from baton.router.openai.messages import template_messages


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": []}])
def test_a_refusal_is_the_text_of_a_message_without_another(content: dict[str, Any]) -> None:
    """Responses of OpenAI have it next to an empty content."""
    messages: list[Any] = [
        {"role": "assistant", "refusal": "No.", **content},
        {"role": "assistant", "refusal": None, **content},
        {"role": "assistant", "refusal": "No.", "content": "Yes."},
    ]
    body = read_body(ChatRequest, orjson.dumps({"model": "m", "messages": messages}))
    assert [each["content"] for each in template_messages(body.messages)] == ["No.", "", "Yes."]
