"""The response object, which repeats the request's options."""

import time
from collections.abc import Sequence

import orjson

from baton.router.generation import Generation
from baton.router.openai.errors import describe
from baton.router.responses.items import Json
from baton.router.responses.request import ResponseRequest

ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}  # by HTTP status; otherwise server_error


class ResponseObject:
    """Maker of the object of one response, at its beginning and at its end."""

    def __init__(self, response_id: str, body: ResponseRequest, model: str, is_stored: bool) -> None:
        """`is_stored`: the response will be stored."""
        reasoning = body.reasoning
        self._options: Json = {
            "background": False,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {
                "effort": None if reasoning is None else reasoning.effort,
                "summary": None if reasoning is None else reasoning.summary,
            },
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": is_stored,
            "text": {
                "format": {"type": "text"}
                if body.text.format is None
                else body.text.format.model_dump(by_alias=True, exclude_none=True),
                "verbosity": body.text.verbosity or "medium",
            },
            "tool_choice": body.tool_choice
            if isinstance(body.tool_choice, str)
            else body.tool_choice.model_dump(exclude_none=True),
            "tools": orjson.Fragment(orjson.dumps([tool.shown() for tool in body.tools])),
            "top_logprobs": body.top_logprobs or 0,
            "truncation": body.truncation,
            "user": body.user,
        }
        self._head: Json = {"id": response_id, "object": "response", "created_at": int(time.time())}
        self._model = model
        self._sampling: Json = {}

    def begin(self, generation: Generation) -> None:
        """Note the sampling options in use, which may be the model's defaults."""
        self._sampling = {"temperature": generation.sampling.temperature, "top_p": generation.sampling.top_p}

    def in_progress(self) -> Json:
        """Return the object before there is any output."""
        return self._object("in_progress", [], None)

    def finished(self, output: Sequence[Json], usage: Json | None, is_complete: bool) -> Json:
        """Return the object at the end; it is incomplete if the output reached `max_output_tokens`."""
        if is_complete:
            return {**self._object("completed", output, usage), "completed_at": int(time.time())}
        reason = {"reason": "max_output_tokens"}
        return {**self._object("incomplete", output, usage), "incomplete_details": reason}

    def failed(self, output: Sequence[Json], error: Exception) -> tuple[Json, Json]:
        """Return the object of a response that failed, and OpenAI's error object."""
        status, body = describe(error)
        details = body["error"]
        assert isinstance(details, dict)
        shown = {"code": ERROR_CODES.get(status, "server_error"), "message": details["message"]}
        return {**self._object("failed", output, None), "error": shown}, details

    def _object(self, status: str, output: Sequence[Json], usage: Json | None) -> Json:
        fields = {"status": status, "error": None, "incomplete_details": None, "model": self._model, "output": output}
        return {**self._head, **fields, **self._options, **self._sampling, "usage": _usage(usage)}


def _usage(usage: Json | None) -> Json | None:
    """Return the usage of a chat completion in the shape of this API. Writing to a cache costs a client nothing."""
    if usage is None:
        return None
    prompt_details, details = usage["prompt_tokens_details"], usage.get("completion_tokens_details")
    assert isinstance(prompt_details, dict)
    num_reasoning = details["reasoning_tokens"] if isinstance(details, dict) else 0
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": prompt_details["cached_tokens"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": num_reasoning},
        "total_tokens": usage["total_tokens"],
    }
