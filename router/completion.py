"""The output of one choice: tokens in, text out, up to its end."""

from collections.abc import Sequence

from baton.protos import common_pb2
from baton.protos.common_pb2 import ServedBy
from baton.protos.worker_pb2 import RequestDelta
from baton.router.errors import OUTPUT_PANICS
from baton.router.generation import ChoiceDelta, Generation
from baton.router.text.detokenizer import Detokenizer
from baton.router.text.stop_strings import StopMatcher
from baton.router.text.tokenizer import Tokenizer

FINISH_NAMES = {common_pb2.FINISH_REASON_STOP: "stop", common_pb2.FINISH_REASON_LENGTH: "length"}


class CompletionOutput:
    """Owns the text state of one choice; `finished` once a stop string or the worker ended it."""

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
        self._stops = StopMatcher(generation.stops, request.include_stop)
        self._is_plain = not request.stop and self._sampling.logprobs is None
        self._num_chars = 0  # of text so far, held back or not
        self._served_by: ServedBy | None = None  # as the worker reported it last

    def push(self, delta: RequestDelta) -> ChoiceDelta:
        """What a worker's news mean for the client; tokens after a stop string are left out.

        Raises Internal if the tokenizer breaks off at the tokens.
        """
        news = ChoiceDelta(self._index, finish_reason=FINISH_NAMES.get(delta.finish_reason))
        if not self._prompt_only:
            with OUTPUT_PANICS:
                self._take_tokens(delta, news)
        elif news.finish_reason is not None:
            news.finish_reason = "length"
        self.finished = news.finish_reason is not None
        if delta.prompt_logprobs:
            news.prompt_logprobs = list(delta.prompt_logprobs)
        if delta.HasField("served_by"):
            self._served_by = news.served_by = delta.served_by
        elif self.finished:  # by a stop string, which the worker does not know of
            news.served_by = self._served_by
        return news

    def _take_tokens(self, delta: RequestDelta, news: ChoiceDelta) -> None:
        """The new tokens, their text and logprobs."""
        # An end or stop token is counted and reported, but is no text.
        hidden_end = delta.finish_reason == common_pb2.FINISH_REASON_STOP and not self._include_stop
        if self._is_plain:
            parts = self._take_at_once(list(delta.token_ids), hidden_end, news)
        else:
            parts = self._take_one_by_one(delta.token_ids, hidden_end, news)
        if news.finish_reason is not None and news.stop_reason is None:
            self._finish(news, parts)
        news.text = "".join(parts)
        if delta.logprobs:
            news.logprobs = list(delta.logprobs[: len(news.token_ids)])

    def _take_at_once(self, token_ids: list[int], hidden_end: bool, news: ChoiceDelta) -> list[str]:
        """Text of tokens in which no stop string is looked for, and whose places in it nobody asks for."""
        self.num_tokens += len(token_ids)
        news.token_ids = token_ids
        return [self._detokenizer.push_all(token_ids[:-1] if hidden_end else token_ids)]

    def _take_one_by_one(self, token_ids: Sequence[int], hidden_end: bool, news: ChoiceDelta) -> list[str]:
        """Text of tokens up to a stop string; tokens after it are left out."""
        parts: list[str] = []
        last = len(token_ids) - 1
        for place, token_id in enumerate(token_ids):
            self.num_tokens += 1
            news.token_ids.append(token_id)
            news.text_offsets.append(self._num_chars)
            if hidden_end and place == last:
                break
            parts.append(self._release(self._detokenizer.push(token_id), news))
            if news.stop_reason is not None:
                break
        return parts

    def _release(self, text: str, news: ChoiceDelta) -> str:
        """The part of new text that can be shown; notes a stop string in `news`."""
        self._num_chars += len(text)
        # As vLLM does it: no stop string ends within the first min_tokens tokens.
        released = self._stops.push(text, check=self.num_tokens > self._sampling.min_tokens)
        if released.stop is not None:
            news.finish_reason, news.stop_reason = "stop", released.stop
        return released.text

    def _finish(self, news: ChoiceDelta, parts: list[str]) -> None:
        """The worker ended it: what was held back is text after all, unless it completes a stop string."""
        parts.append(self._release(self._detokenizer.flush(), news))
        if news.stop_reason is not None:
            return
        parts.append(self._stops.flush())
        if news.finish_reason == "stop" and news.token_ids and news.token_ids[-1] in self._sampling.stop_token_ids:
            news.stop_reason = news.token_ids[-1]
