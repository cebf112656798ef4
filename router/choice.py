"""The output of one choice: tokens in, text out, up to its end."""

from protos import common_pb2
from protos.worker_pb2 import RequestDelta
from router.detokenizer import Detokenizer
from router.generation import ChoiceDelta, Generation
from router.stop_strings import StopStrings
from router.tokenizer import Tokenizer

FINISH_NAMES = {common_pb2.FINISH_REASON_STOP: "stop", common_pb2.FINISH_REASON_LENGTH: "length"}


class ChoiceOutput:
    """Owns the text state of one choice; `finished` once a stop string or the worker ended it."""

    def __init__(self, index: int, generation: Generation, tokenizer: Tokenizer) -> None:
        request = generation.request
        self.finished = False
        self.num_tokens = 0
        self._index = index
        self._sampling = generation.sampling
        self._include_stop = request.include_stop
        self._prompt_only = request.max_tokens == 0
        self._detokenizer: Detokenizer = tokenizer.detokenizer(generation.token_ids, request.skip_special_tokens)
        self._stops = StopStrings(request.stop, request.include_stop)
        self._num_chars = 0  # of text so far, held back or not

    def push(self, delta: RequestDelta) -> ChoiceDelta:
        """What a worker's news mean for the client; tokens after a stop string are left out."""
        news = ChoiceDelta(self._index, finish_reason=FINISH_NAMES.get(delta.finish_reason))
        if not self._prompt_only:
            self._take_tokens(delta, news)
        elif news.finish_reason is not None:
            news.finish_reason = "length"
        self.finished = news.finish_reason is not None
        news.prompt_logprobs = list(delta.prompt_logprobs)
        news.served_by = delta.served_by if delta.HasField("served_by") else None
        return news

    def _take_tokens(self, delta: RequestDelta, news: ChoiceDelta) -> None:
        """The new tokens, their text and logprobs."""
        parts: list[str] = []
        hidden_end = delta.finish_reason == common_pb2.FINISH_REASON_STOP and not self._include_stop
        last = len(delta.token_ids) - 1
        for place, token_id in enumerate(delta.token_ids):
            self.num_tokens += 1
            news.token_ids.append(token_id)
            news.text_offsets.append(self._num_chars)
            if hidden_end and place == last:
                break  # an end or stop token is counted and reported, but is no text
            parts.append(self._release(self._detokenizer.push(token_id), news))
            if news.stop_reason is not None:
                break
        if news.finish_reason is not None and news.stop_reason is None:
            self._finish(news, parts)
        news.text = "".join(parts)
        news.logprobs = list(delta.logprobs[: len(news.token_ids)])

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
