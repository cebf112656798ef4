"""The response to a request, streamed as OpenAI's named events or whole."""

from collections.abc import Iterable, Sequence
from itertools import count

import orjson

from baton.protos.common_pb2 import PositionLogprobs
from baton.router.generation import CompletionDelta, Generation
from baton.router.openai.chat_parts import CallIds, ShownPart, merged, without_reasoning
from baton.router.openai.logprobs import chat_content
from baton.router.openai.response import WholeCompletion
from baton.router.parsing.base import CallArguments, Content
from baton.router.responses.field_names import FieldNames
from baton.router.responses.items import Json
from baton.router.responses.output_items import OutputItems, no_event, without_logprobs
from baton.router.responses.response_object import ResponseObject
from baton.router.text.tokenizer import Tokenizer


class ResponsesShape:
    """Encoder of one response. It keeps the output, which the last event repeats."""

    def __init__(
        self,
        response_id: str,
        make: ResponseObject,
        generation: Generation,
        names: FieldNames,
        tokenizer: Tokenizer,
        num_top: int | None,
        with_reasoning: bool,
    ) -> None:
        """`num_top`: best candidates of each token; None: no logprobs."""
        self.result: Json | None = None  # the object to store, once the response is completed or incomplete
        self._make = make
        self._names = names
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._with_reasoning = with_reasoning
        self._response_id = response_id
        self._call_ids = CallIds(response_id, generation)
        self._output = OutputItems(response_id, self._call_ids, self._emit)
        self._events: list[bytes] = []  # not returned yet
        self._numbers = count()
        self._logprobs: list[bytes] = []  # of tokens whose text was not shown yet
        self._is_begun = False
        self._finish_reason: str | None = None
        make.begin(generation)

    def resume(self, index: int) -> None:
        """Raise RuntimeError: the path refuses to resume responses."""
        raise RuntimeError("responses of this API are not resumed")

    def chunk(self, delta: CompletionDelta, usage: Json | None) -> bytes:
        """Return the events of a delta, which may be several merged ones."""
        if not self._is_begun:
            self._is_begun = True
            for kind in ("response.created", "response.in_progress"):
                self._emit(kind, {"response": self._make.in_progress()})
        self._logprobs += self._shown_logprobs(delta.logprobs[delta.num_reasoning_tokens :])
        for part in self._parts(delta):
            logprobs: list[bytes] = []
            if isinstance(part, Content):
                logprobs, self._logprobs = self._logprobs, []
            elif not isinstance(part, CallArguments):
                self._logprobs = []
            self._output.add(part, logprobs)
        if delta.finish_reason is not None:
            self._finish_reason = delta.finish_reason
            self._output.finish(delta.finish_reason != "length")
        return self._take()

    def end(self, usage: Json | None) -> bytes:
        """Return the last event, which has the whole response."""
        response = self._finished(self._output, usage, self._finish_reason)
        self._emit(f"response.{response['status']}", {"response": response})
        return self._take()

    def failure(self, error: Exception) -> bytes:
        """Return the events of an error and of the failed response, with the items that were complete."""
        response, details = self._make.failed(self._output.items, self._names.renamed(error))
        code = details["code"]
        fields = {"message": details["message"], "param": details["param"]}
        self._emit("error", {"code": None if code is None else str(code), **fields})
        self._emit("response.failed", {"response": response})
        return self._take()

    def whole(self, completions: Sequence[WholeCompletion], usage: Json) -> Json:
        """Return the response object."""
        [completion] = completions
        output = OutputItems(self._response_id, self._call_ids, no_event)
        positions = completion.logprobs[completion.num_reasoning_tokens :]
        for part in self._parts(completion):
            logprobs: list[bytes] = []
            if isinstance(part, Content) and positions:
                num_tokens = self._num_tokens(positions, part.text)
                logprobs, positions = self._shown_logprobs(positions[:num_tokens]), positions[num_tokens:]
            output.add(part, logprobs)
        output.finish(completion.finish_reason != "length")
        return self._finished(output, usage, completion.finish_reason)

    def _finished(self, output: OutputItems, usage: Json | None, finish_reason: str | None) -> Json:
        response = self._make.finished(output.items, usage, finish_reason != "length")
        self.result = {**response, "output": without_logprobs(output.items)}
        return response

    def _parts(self, delta: CompletionDelta) -> Iterable[ShownPart]:
        if delta.parts is None:
            return [Content(delta.text)] if delta.text else []
        return merged(delta.parts if self._with_reasoning else without_reasoning(delta.parts))

    def _shown_logprobs(self, positions: Sequence[PositionLogprobs]) -> list[bytes]:
        """Return the logprobs of tokens, each as JSON."""
        if self._num_top is None:
            return []
        return list(map(orjson.dumps, chat_content(positions, self._num_top, self._tokenizer)))

    def _num_tokens(self, positions: Sequence[PositionLogprobs], text: str) -> int:
        """Return how many of the tokens make up a text, which may lack white space in front of it."""
        num_left = len(text.encode())
        is_begun, is_white = False, text[:1].isspace()
        for place, position in enumerate(positions):
            token = self._tokenizer.token_bytes(position.chosen.token_id)
            shown = token if is_begun or is_white else token.lstrip()
            is_begun = is_begun or bool(shown)
            num_left -= len(shown)
            if num_left <= 0:
                return place + 1
        return len(positions)

    def _emit(self, kind: str, fields: Json) -> None:
        event = orjson.dumps({"type": kind, "sequence_number": next(self._numbers), **fields})
        self._events.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), event))

    def _take(self) -> bytes:
        events, self._events = self._events, []
        return b"".join(events)
