"""A check of any response of the HTTP API, whatever the request."""

import json
from typing import Any


def check_answer(status: int, content_type: str, content: bytes) -> None:
    """Fail for an internal server error, and for a refusal that is not an error object of OpenAI's format."""
    assert 200 <= status < 500, (status, content[:1000])
    if status < 400:
        return
    assert content_type.startswith("application/json"), (status, content_type, content[:1000])
    body: Any = json.loads(content)
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}, body
    assert isinstance(error["message"], str), body
    assert 0 < len(error["message"]) < 20_000, error["message"][:200]
    assert isinstance(error["type"], str), body
    assert error["type"], body
    assert error["param"] is None or isinstance(error["param"], str), body
