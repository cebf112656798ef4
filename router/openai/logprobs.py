"""Logprobs in the shapes of the chat and the completions API, and vLLM's prompt logprobs."""

from collections.abc import Sequence

from baton.protos.common_pb2 import PositionLogprobs, TokenLogprob
from baton.router.text.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0  # JSON has no negative infinity


def _value(logprob: TokenLogprob) -> float:
    return max(logprob.logprob, LEAST_LOGPROB)


def chat_content(positions: Sequence[PositionLogprobs], num_top: int, tokenizer: Tokenizer) -> list[dict[str, object]]:
    """Return `choices[].logprobs.content` of the chat API."""

    def entry(logprob: TokenLogprob) -> dict[str, object]:
        token_bytes = tokenizer.token_bytes(logprob.token_id)
        text = token_bytes.decode("utf-8", "replace")
        return {"token": text, "logprob": _value(logprob), "bytes": list(token_bytes)}

    return [
        {**entry(position.chosen), "top_logprobs": [entry(each) for each in position.top[:num_top]]}
        for position in positions
    ]


def completion_block(
    token_ids: Sequence[int],
    positions: Sequence[PositionLogprobs],
    text_offsets: Sequence[int],
    num_top: int,
    tokenizer: Tokenizer,
) -> dict[str, list[object]]:
    """Return `choices[].logprobs` of the completions API.

    The top candidates always include the sampled token, so there may be one more than `num_top`.
    """

    def top(position: PositionLogprobs) -> dict[str, float]:
        best: dict[str, float] = {}
        for each in (*position.top[:num_top], position.chosen):
            best.setdefault(tokenizer.token_text(each.token_id), _value(each))
        return best

    return {
        "tokens": [tokenizer.token_text(token_id) for token_id in token_ids],
        "token_logprobs": [_value(position.chosen) for position in positions],
        "top_logprobs": [top(position) for position in positions],
        "text_offset": list(text_offsets),
    }


def prompt_positions(positions: Sequence[PositionLogprobs], tokenizer: Tokenizer) -> list[object]:
    """Return vLLM's `prompt_logprobs`: null for the first position, then candidates by token id."""

    def entry(logprob: TokenLogprob) -> dict[str, object]:
        text = tokenizer.token_text(logprob.token_id)
        return {"logprob": _value(logprob), "rank": logprob.rank, "decoded_token": text}

    return [None, *({str(each.token_id): entry(each) for each in (pos.chosen, *pos.top)} for pos in positions)]
