"""The output of one completion: from tokens to text or parts, until it finishes."""

from collections.abc import Iterator, Mapping, Sequence

from baton.protos import common_pb2
from baton.protos.common_pb2 import ServedBy
from baton.protos.worker_pb2 import RequestDelta
from baton.router.errors import OUTPUT_PANICS
from baton.router.generation import CompletionDelta, Generation
from baton.router.output.parts import PartsReader
from baton.router.parsing.base import OutputPart, Piece
from baton.router.text.detokenizer import Detokenizer
from baton.router.text.stop_strings import StopMatcher
from baton.router.text.tokenizer import Tokenizer

FINISH_NAMES = {common_pb2.FINISH_REASON_STOP: "stop", common_pb2.FINISH_REASON_LENGTH: "length"}


class CompletionOutput:
    """Text state of one completion; `finished` after a stop string or the worker ended it."""

    def __init__(self, index: int, generation: Generation, tokenizer: Tokenizer) -> None:
        request = generation.request
        self.finished = False
        self.num_tokens = 0
        self._index = index
        self._sampling = generation.sampling
        self._include_stop = request.include_stop
        self._prompt_only = request.max_tokens == 0
        with OUTPUT_PANICS:
            self._detokenizer: Detokenizer = tokenizer.detokenizer(generation.token_ids, request.skip_special_tokens)
        self._reader = generation.parts_reader()
        self._stops = StopMatcher(generation.stops, request.include_stop) if generation.stops else None
        self._is_plain = not request.stop and self._sampling.logprobs is None
        self._num_chars = 0  # length of the text so far, including text that is held back
        self._served_by: ServedBy | None = None  # the worker's last report

    def push(self, delta: RequestDelta) -> CompletionDelta:
        """Convert a worker's delta to the client's, without the tokens after a stop string.

        Raises Internal if the tokenizer panics on the tokens.
        """
        output = CompletionDelta(self._index, finish_reason=FINISH_NAMES.get(delta.finish_reason))
        if not self._prompt_only:
            with OUTPUT_PANICS:
                self._take_tokens(delta, output)
        elif output.finish_reason is not None:
            output.finish_reason = "length"
        self.finished = output.finish_reason is not None
        if delta.prompt_logprobs:
            output.prompt_logprobs = list(delta.prompt_logprobs)
        if delta.HasField("served_by"):
            self._served_by = output.served_by = delta.served_by
        elif self.finished:  # by a stop string: the worker does not check them
            output.served_by = self._served_by
        return output

    def _take_tokens(self, delta: RequestDelta, output: CompletionDelta) -> None:
        """Add the new tokens with their text or parts, and their logprobs, to `output`."""
        # An EOS or stop token is counted and reported, but adds no text.
        hidden_end = delta.finish_reason == common_pb2.FINISH_REASON_STOP and not self._include_stop
        if self._reader is not None:
            output.parts = self._take_parts(self._reader, delta.token_ids, hidden_end, output)
        else:
            take = self._take_at_once if self._is_plain else self._take_one_by_one
            texts = take(list(delta.token_ids), hidden_end, output)
            if output.finish_reason is not None and output.stop_reason is None:
                texts.append(self._finish(self._detokenizer.flush(), output))
            output.text = "".join(texts)
        if delta.logprobs:
            output.logprobs = list(delta.logprobs[: len(output.token_ids)])

    def _take_at_once(self, token_ids: list[int], hidden_end: bool, output: CompletionDelta) -> list[str]:
        """Return the text of tokens if neither stop strings nor text offsets are needed."""
        self.num_tokens += len(token_ids)
        output.token_ids = token_ids
        return [self._detokenizer.push_all(token_ids[:-1] if hidden_end else token_ids)]

    def _take_one_by_one(self, token_ids: list[int], hidden_end: bool, output: CompletionDelta) -> list[str]:
        """Return the text of tokens up to a stop string; later tokens are dropped."""
        texts: list[str] = []
        last = len(token_ids) - 1
        for place, token_id in enumerate(token_ids):
            self.num_tokens += 1
            output.token_ids.append(token_id)
            output.text_offsets.append(self._num_chars)
            if hidden_end and place == last:
                break
            texts.append(self._release(self._detokenizer.push(token_id), output))
            if output.stop_reason is not None:
                break
        return texts

    def _take_parts(
        self, reader: PartsReader, token_ids: Sequence[int], hidden_end: bool, output: CompletionDelta
    ) -> list[OutputPart]:
        """Return the parts of tokens up to a stop string or a call too many; later tokens are dropped."""
        parts: list[OutputPart] = []
        last = len(token_ids) - 1
        for place, token_id in enumerate(token_ids):
            self.num_tokens += 1
            output.token_ids.append(token_id)
            was_in_reasoning = reader.in_reasoning
            if not (hidden_end and place == last):
                for piece in self._pieces(token_id, reader.markers):
                    if output.stop_reason is None:
                        parts += self._parts(reader, piece, self._release(piece.text, output))
            if reader.in_reasoning:  # what is in front of its text also belongs to it
                output.num_reasoning_tokens += 1 if was_in_reasoning else self.num_tokens
            if output.stop_reason is not None or reader.is_full:
                break
        if reader.is_full:
            output.finish_reason = "stop"
        elif output.finish_reason is not None and output.stop_reason is None:
            piece = Piece(self._detokenizer.flush())
            parts += self._parts(reader, piece, self._finish(piece.text, output))
        if output.finish_reason is not None:
            parts += reader.flush()
            if reader.num_calls and output.finish_reason == "stop" and not isinstance(output.stop_reason, str):
                output.finish_reason = "tool_calls"
        return parts

    def _pieces(self, token_id: int, markers: Mapping[int, str]) -> Iterator[Piece]:
        """Yield the text that a token completes. Markers are shown, also special ones."""
        marker = markers.get(token_id)
        if marker is None:
            yield Piece(self._detokenizer.push(token_id))
        else:
            yield Piece(self._detokenizer.flush())
            yield Piece(marker, marker)

    def _parts(self, reader: PartsReader, piece: Piece, released: str) -> list[OutputPart]:
        """Return the parts of the released text, which is at the end of the piece or of the text held back so far."""
        if piece.text:
            reader.hold(piece)
        return reader.release(len(released))

    def _release(self, text: str, output: CompletionDelta) -> str:
        """Return the part of new text that can be shown. Reports a stop string in `output`."""
        self._num_chars += len(text)
        if self._stops is None:
            return text
        # As in vLLM, no stop string ends within the first min_tokens tokens.
        released = self._stops.push(text, check=self.num_tokens > self._sampling.min_tokens)
        if released.stop is not None:
            output.finish_reason, output.stop_reason = "stop", released.stop
        return released.text

    def _finish(self, text: str, output: CompletionDelta) -> str:
        """Return `text` and the text that was held back, as the worker ended the completion, up to a stop string."""
        released = self._release(text, output)
        if output.stop_reason is not None:
            return released
        if self._stops is not None:
            released += self._stops.flush()
        if (
            output.finish_reason == "stop"
            and output.token_ids
            and output.token_ids[-1] in self._sampling.stop_token_ids
        ):
            output.stop_reason = output.token_ids[-1]
        return released
