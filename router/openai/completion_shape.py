"""Encoding of responses of the completions API."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from baton.protos.common_pb2 import PositionLogprobs
from baton.router.generation import CompletionDelta, Generation
from baton.router.openai.errors import error_event
from baton.router.openai.logprobs import completion_block, prompt_positions, token_name
from baton.router.openai.response import DONE, WholeCompletion, json_fragment
from baton.router.text.tokenizer import Tokenizer


@dataclass(slots=True)
class PromptEcho:
    """A prompt that is repeated in front of its completions."""

    text: str
    token_ids: Sequence[int]
    text_offsets: Sequence[int]  # of each token, if logprobs were requested
    token_logprobs: list[object] = field(default_factory=lambda: [None])  # filled as they arrive; the first has none
    top_logprobs: list[object] = field(default_factory=lambda: [None])


class CompletionShape:
    """Encoder of the responses to one completion request. Encodes the constant part of its chunks once."""

    def __init__(
        self,
        *,
        response_id: str,
        model: str,
        generations: Sequence[Generation],
        echoes: Sequence[PromptEcho],  # one per prompt; empty: no echo
        num_completions: int,  # completions of each prompt
        num_top: int | None,  # best candidates of each token; None: no logprobs
        with_prompt_logprobs: bool,
        with_token_ids: bool,
        tokenizer: Tokenizer,
        names_ids: bool = False,  # in logprobs, tokens are named by their ids and not by their texts
    ) -> None:
        self._generations = generations
        self._echoes = echoes
        self._num_completions = num_completions
        self._num_top = num_top
        self._with_prompt_logprobs = with_prompt_logprobs
        self._with_token_ids = with_token_ids
        self._tokenizer = tokenizer
        self._token_name = token_name(tokenizer, names_ids)
        self._head: Mapping[str, object] = {
            "id": response_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._prefix = b"data: " + orjson.dumps(self._head)[:-1] + b',"choices":['
        self._opened: set[int] = set()

    def resume(self, index: int) -> None:
        """Omit the prompt's fields in the first event of a completion."""
        self._opened.add(index)

    def chunk(self, delta: CompletionDelta, usage: dict[str, object] | None) -> bytes:
        """Return the event of a delta; empty while a character or stop string is incomplete.

        An echo is sent with the first token in any case: a client that resumes after that token must have the echo.
        """
        prompt = delta.index // self._num_completions
        echo = self._echoes[prompt] if self._echoes else None
        is_first = delta.index not in self._opened
        if echo is not None:
            self._add_prompt_logprobs(echo, delta.prompt_logprobs)
        with_tokens = self._num_top is not None or self._with_token_ids or (echo is not None and is_first)
        if not (delta.text or delta.finish_reason or (with_tokens and delta.token_ids)):
            return b""
        completion = WholeCompletion(delta.index)
        completion.extend(delta)
        self._opened.add(delta.index)
        body = self._choice(completion, echo, is_first)
        return self._prefix + orjson.dumps(body) + b"]" + self._end(usage)

    def end(self, usage: dict[str, object] | None) -> bytes:
        """Return the event with the usage and no choices, if it is wanted, and the end of the stream."""
        return DONE if usage is None else self._prefix + b"]" + self._end(usage) + DONE

    def failure(self, error: Exception) -> bytes:
        """Return the event of an error."""
        return error_event(error)

    def whole(self, completions: Sequence[WholeCompletion], usage: dict[str, object]) -> dict[str, object]:
        """Return the completion object."""
        for completion in completions:
            if self._echoes:
                self._add_prompt_logprobs(
                    self._echoes[completion.index // self._num_completions], completion.prompt_logprobs
                )
        bodies = []
        for completion in completions:
            prompt = completion.index // self._num_completions
            body = self._choice(completion, self._echoes[prompt] if self._echoes else None, is_first=True)
            if self._with_prompt_logprobs:
                first = completions[prompt * self._num_completions]
                body["prompt_logprobs"] = prompt_positions(first.prompt_logprobs, self._tokenizer)
            bodies.append(json_fragment(body))
        return {**self._head, "choices": bodies, "usage": usage}

    def _choice(self, completion: WholeCompletion, echo: PromptEcho | None, is_first: bool) -> dict[str, object]:
        prompt = self._generations[completion.index // self._num_completions]
        shown = echo if is_first else None
        body: dict[str, object] = {
            "index": completion.index,
            "text": (shown.text if shown is not None else "") + completion.text,
            "logprobs": None if self._num_top is None else self._logprobs(completion, echo, is_first, self._num_top),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if self._with_token_ids:
            body["token_ids"] = completion.token_ids
            if is_first:
                body["prompt_token_ids"] = prompt.token_ids
        return body

    def _add_prompt_logprobs(self, echo: PromptEcho, positions: Sequence[PositionLogprobs]) -> None:
        """Encode prompt logprobs as they arrive, once for all completions: a long prompt's take seconds."""
        if self._num_top is not None:
            block = completion_block((), positions, (), self._num_top, self._token_name)
            echo.token_logprobs += block["token_logprobs"]
            echo.top_logprobs += block["top_logprobs"]

    def _logprobs(
        self, completion: WholeCompletion, echo: PromptEcho | None, is_first: bool, num_top: int
    ) -> dict[str, list[object]]:
        start = 0 if echo is None else len(echo.text)
        offsets = [start + offset for offset in completion.text_offsets]
        block = completion_block(completion.token_ids, completion.logprobs, offsets, num_top, self._token_name)
        if echo is None or not is_first:
            return block
        return {
            "tokens": [*map(self._token_name, echo.token_ids), *block["tokens"]],
            "token_logprobs": [*echo.token_logprobs, *block["token_logprobs"]],
            "top_logprobs": [*echo.top_logprobs, *block["top_logprobs"]],
            "text_offset": [*echo.text_offsets, *block["text_offset"]],
        }

    def _end(self, usage: dict[str, object] | None) -> bytes:
        return b"}\n\n" if usage is None else b',"usage":' + orjson.dumps(usage) + b"}\n\n"
