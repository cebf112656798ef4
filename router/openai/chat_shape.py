"""The responses to a chat completion request."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from baton.protos.common_pb2 import PositionLogprobs
from baton.router.generation import CompletionDelta, Generation
from baton.router.openai.chat_parts import CallIds, merged, part_delta, parts_message, without_reasoning
from baton.router.openai.errors import error_event
from baton.router.openai.logprobs import chat_content, prompt_positions
from baton.router.openai.response import DONE, WholeCompletion, json_fragment
from baton.router.parsing.base import OutputPart
from baton.router.text.tokenizer import Tokenizer

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Optional fields of the responses to a request."""

    num_top: int | None = None  # best candidates of each token; None: no logprobs
    with_token_ids: bool = False
    with_reasoning: bool = True
    names_ids: bool = False  # in logprobs, tokens are named by their ids and not by their texts


class ChatShape:
    """Encoder of the responses to one chat request; the constant part of its chunks is encoded once."""

    def __init__(
        self, response_id: str, generation: Generation, options: ChatOptions, model: str, tokenizer: Tokenizer
    ) -> None:
        self._options = options
        self._generation = generation
        self._tokenizer = tokenizer
        self._head: Mapping[str, object] = {"id": response_id, "created": int(time.time()), "model": model}
        constant = orjson.dumps({**self._head, "object": "chat.completion.chunk"})
        self._prefix = b"data: " + constant[:-1] + b',"choices":['
        self._opened: set[int] = set()
        self._call_ids = CallIds(response_id, generation)

    def resume(self, index: int) -> None:
        """Omit the opening event of a completion: the client has it."""
        self._opened.add(index)

    def chunk(self, delta: CompletionDelta, usage: Json | None) -> bytes:
        """Return the events: the role first, then new text or parts; none while nothing can be shown."""
        opening = b"" if delta.index in self._opened else self._open(delta.index, usage)
        with_tokens = self._options.num_top is not None or self._options.with_token_ids
        if delta.parts is not None:
            *first, last = self._deltas(delta.index, delta.parts) or [b""]
            opening += b"".join(self._part(delta.index, each, usage) for each in first)
        else:
            last = b'"content":' + orjson.dumps(delta.text) if delta.text else b""
        if not (last or delta.finish_reason or (with_tokens and delta.token_ids)):
            return opening
        if not last and delta.finish_reason is None:
            last = b'"content":""'
        parts = [self._prefix, b'{"index":%d,"delta":{' % delta.index, last]
        parts += [b'},"logprobs":', orjson.dumps(self._logprobs(delta.logprobs)) if delta.logprobs else b"null"]
        if delta.finish_reason is None:
            parts.append(b',"finish_reason":null')
        else:
            parts += [b',"finish_reason":"%b"' % delta.finish_reason.encode()]
            parts += [b',"stop_reason":', orjson.dumps(delta.stop_reason)]
        if self._options.with_token_ids:
            parts += [b',"token_ids":', orjson.dumps(delta.token_ids)]
        parts += [b"}]", self._end(usage)]
        return opening + b"".join(parts)

    def end(self, usage: Json | None) -> bytes:
        """Return the event with the usage and no choices, if it is wanted, and the end of the stream."""
        return DONE if usage is None else self._prefix + b"]" + self._end(usage) + DONE

    def failure(self, error: Exception) -> bytes:
        """Return the event of an error."""
        return error_event(error)

    def whole(self, completions: Sequence[WholeCompletion], usage: Json) -> Json:
        """Return the chat completion object."""
        body = {
            **self._head,
            "object": "chat.completion",
            "choices": [json_fragment(self._choice(each)) for each in completions],
        }
        body["usage"] = usage
        if self._generation.sampling.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_positions(completions[0].prompt_logprobs, self._tokenizer)
        if self._options.with_token_ids:
            body["prompt_token_ids"] = self._generation.token_ids
        return body

    def _choice(self, completion: WholeCompletion) -> Json:
        body: Json = {
            "index": completion.index,
            "message": {"role": "assistant", "content": completion.text, "refusal": None},
            "logprobs": self._logprobs(completion.logprobs),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if completion.parts is not None:
            parts = self._visible(completion.parts)
            message = parts_message(parts, completion.index, self._call_ids, self._has_reasoning)
            body["message"] = {"role": "assistant", "refusal": None, **message}
        if self._options.with_token_ids:
            body["token_ids"] = completion.token_ids
        return body

    @property
    def _has_reasoning(self) -> bool:
        rules = self._generation.request.output_rules
        return rules is not None and rules.has_reasoning

    def _visible(self, parts: list[OutputPart]) -> list[OutputPart]:
        return parts if self._options.with_reasoning else without_reasoning(parts)

    def _deltas(self, index: int, parts: list[OutputPart]) -> list[bytes]:
        """Return the fields of one delta for each part: clients may expect a single one in an event."""
        visible = self._visible(parts)
        return [orjson.dumps(part_delta(part, index, self._call_ids))[1:-1] for part in merged(visible)]

    def _part(self, index: int, fields: bytes, usage: Json | None) -> bytes:
        """Return the event of a part that is not the last of its delta."""
        choice = b'{"index":%d,"delta":{%b},"logprobs":null,"finish_reason":null' % (index, fields)
        tokens = b',"token_ids":[]' if self._options.with_token_ids else b""
        return self._prefix + choice + tokens + b"}]" + self._end(usage)

    def _open(self, index: int, usage: Json | None) -> bytes:
        self._opened.add(index)
        delta = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]' % index
        prompt = b""
        if self._options.with_token_ids:
            prompt = b',"prompt_token_ids":' + orjson.dumps(self._generation.token_ids)
        return self._prefix + delta + prompt + self._end(usage)

    def _end(self, usage: Json | None) -> bytes:
        return b"}\n\n" if usage is None else b',"usage":' + orjson.dumps(usage) + b"}\n\n"

    def _logprobs(self, positions: Sequence[PositionLogprobs]) -> Json | None:
        options = self._options
        if options.num_top is None:
            return None
        return {"content": chat_content(positions, options.num_top, self._tokenizer, options.names_ids)}
