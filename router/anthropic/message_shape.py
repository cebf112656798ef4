"""The responses to a request for a message."""

from collections.abc import Sequence

import orjson

from baton.router.anthropic.errors import error_body
from baton.router.anthropic.output_blocks import BlockStream, content_blocks, event
from baton.router.anthropic.request import ThinkingDisplay
from baton.router.generation import CompletionDelta, Generation, cached_tokens
from baton.router.openai.chat_parts import CallIds
from baton.router.openai.response import WholeCompletion
from baton.router.parsing.base import Content, OutputPart

Json = dict[str, object]

PING = event("ping", b"")
MESSAGE_STOP = event("message_stop", b"")
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageShape:
    """Encoder of the responses to one request."""

    def __init__(self, request_id: str, generation: Generation, display: ThinkingDisplay, model: str) -> None:
        message_id = f"msg_{request_id}"
        self._request_id = request_id
        self._generation = generation
        self._display = display
        self._head: Json = {"id": message_id, "type": "message", "role": "assistant", "model": model}
        self._call_ids = CallIds(message_id, generation)
        self._blocks = BlockStream(self._call_ids, display)
        self._has_begun = False
        self._stop: Json = stop_fields(None, None)

    def resume(self, index: int) -> None:
        """Raise NotImplementedError: streams of this API cannot be resumed."""
        raise NotImplementedError

    def chunk(self, delta: CompletionDelta, usage: Json | None) -> bytes:
        """Return the events: `message_start` first, then those of blocks. `usage` is only in the last events."""
        events = [] if self._has_begun else [self._begin(delta)]
        events += self._blocks.events(_parts(delta))
        if delta.finish_reason is not None:
            events += self._blocks.end()
            self._stop = stop_fields(delta.finish_reason, delta.stop_reason)
        return b"".join(events)

    def end(self, usage: Json | None) -> bytes:
        """Return the events with the stop reason and the usage, and the end of the stream."""
        assert usage is not None  # requested for each stream
        fields = orjson.dumps({"delta": self._stop, "usage": self._usage(usage)})
        return event("message_delta", fields[1:-1]) + MESSAGE_STOP

    def failure(self, error: Exception) -> bytes:
        """Return the event of an error."""
        return event("error", orjson.dumps(_without_type(error_body(error, self._request_id)))[1:-1])

    def whole(self, completions: Sequence[WholeCompletion], usage: Json) -> Json:
        """Return the message object."""
        [completion] = completions
        return {
            **self._head,
            "content": content_blocks(_parts(completion), self._call_ids, self._display),
            **stop_fields(completion.finish_reason, completion.stop_reason),
            "usage": self._usage(usage),
        }

    def _usage(self, usage: Json) -> Json:
        """Return the usage of a chat response in Anthropic's shape."""
        prompt, details = usage["prompt_tokens"], usage["prompt_tokens_details"]
        output, reasoning = usage["completion_tokens"], usage.get("completion_tokens_details")
        assert isinstance(prompt, int)
        assert isinstance(details, dict)
        assert isinstance(output, int)
        fields = _usage(prompt, details["cached_tokens"], self._generation.num_marked_tokens, output)
        if isinstance(reasoning, dict):
            fields["output_tokens_details"] = {"thinking_tokens": reasoning["reasoning_tokens"]}
        return fields

    def _begin(self, delta: CompletionDelta) -> bytes:
        self._has_begun = True
        num_cached = 0 if delta.served_by is None else cached_tokens(delta.served_by)
        generation = self._generation
        usage = _usage(len(generation.token_ids), num_cached, generation.num_marked_tokens, 0)
        message = {**self._head, "content": [], **stop_fields(None, None), "usage": usage}
        return event("message_start", b'"message":' + orjson.dumps(message)) + PING


def stop_fields(finish_reason: str | None, stop_reason: str | int | None) -> Json:
    """Return `stop_reason` and `stop_sequence`. `stop_reason`: the chat API's, a stop string or the id of a token."""
    if isinstance(stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
    return {"stop_reason": finish_reason and STOP_REASONS[finish_reason], "stop_sequence": None}


def _usage(num_prompt_tokens: int, num_cached: int, num_marked: int, num_output_tokens: int) -> Json:
    """Return the usage: the tokens of the prompt that were in a cache, those that a mark put there, and the others.

    Caching is automatic, so that without marks all of the prompt would count as put there; none of it does.
    """
    num_created = max(0, min(num_marked, num_prompt_tokens) - num_cached)
    return {
        "input_tokens": max(0, num_prompt_tokens - num_cached - num_created),
        "cache_creation_input_tokens": num_created,
        "cache_read_input_tokens": num_cached,
        "output_tokens": num_output_tokens,
    }


def _parts(delta: CompletionDelta) -> list[OutputPart]:
    if delta.parts is not None:
        return delta.parts
    return [Content(delta.text)] if delta.text else []


def _without_type(body: Json) -> Json:
    return {name: value for name, value in body.items() if name != "type"}
