"""A request for a tool call, and what its client receives."""

from collections.abc import AsyncIterator
from typing import Any

import orjson

NUM_WORDS = 20
WORDS = {
    "type": "array",
    "items": {"type": "string", "pattern": "^[a-z]{2,9}$"},
    "minItems": NUM_WORDS,
    "maxItems": NUM_WORDS,
}
PARAMETERS = {"type": "object", "properties": {"words": WORDS}, "required": ["words"]}
TOOL = {"type": "function", "function": {"name": "say", "parameters": PARAMETERS}}
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Say some words. " * 30}], "tools": [TOOL], "tool_choice": "required",
    "parallel_tool_calls": False, "max_tokens": 900, "temperature": 1, "seed": 11, "top_k": -1, "top_p": 1,
    "repetition_penalty": 1, "stream": True, "return_token_ids": True,
}  # fmt: skip
NUM_SEEN = 60  # tokens in front of the move


class Received:
    """Tokens and parts of a stream."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.begins: list[Any] = []
        self.arguments = ""
        self.finish_reason: str | None = None

    async def read(self, lines: AsyncIterator[str], num_tokens: int | None = None) -> None:
        """Read events until there are this many tokens. None: until the end."""
        while num_tokens is None or len(self.token_ids) < num_tokens:
            line = await anext(lines, None)
            if line is None:
                break
            if line.startswith("data: {"):
                self._add(orjson.loads(line.removeprefix("data: ")))

    def _add(self, body: Any) -> None:
        assert "choices" in body, body
        [choice] = body["choices"]
        self.token_ids += choice.get("token_ids", [])
        self.finish_reason = choice["finish_reason"] or self.finish_reason
        assert not choice["delta"].get("content")
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                self.begins.append(call)
            self.arguments += call["function"]["arguments"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Received) and vars(self) == vars(other)
