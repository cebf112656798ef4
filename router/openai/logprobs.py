"""Logprobs in the shapes of the chat and the completions API, and vLLM's prompt logprobs."""

from collections.abc import Callable, Sequence

from baton.protos.common_pb2 import PositionLogprobs, TokenLogprob
from baton.router.text.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0  # JSON has no negative infinity
TOKEN_ID_PREFIX = "token_id:"  # of a token's name in place of its text, as in vLLM

TokenName = Callable[[int], str]


def _value(logprob: TokenLogprob) -> float:
    return max(logprob.logprob, LEAST_LOGPROB)


def token_name(tokenizer: Tokenizer, as_ids: bool) -> TokenName:
    """Return the function from a token id to the token's name in logprobs: its text, or with `as_ids` its id."""
    return (lambda token_id: f"{TOKEN_ID_PREFIX}{token_id}") if as_ids else tokenizer.token_text


def chat_content(
    positions: Sequence[PositionLogprobs], num_top: int, tokenizer: Tokenizer, as_ids: bool = False
) -> list[dict[str, object]]:
    """Return `choices[].logprobs.content` of the chat API. `as_ids`: tokens are named by their ids."""

    def entry(logprob: TokenLogprob) -> dict[str, object]:
        token_bytes = tokenizer.token_bytes(logprob.token_id)
        text = f"{TOKEN_ID_PREFIX}{logprob.token_id}" if as_ids else token_bytes.decode("utf-8", "replace")
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
    name: TokenName,
) -> dict[str, list[object]]:
    """Return `choices[].logprobs` of the completions API.

    The top candidates always include the sampled token, so there may be one more than `num_top`.
    """

    def top(position: PositionLogprobs) -> dict[str, float]:
        best: dict[str, float] = {}
        for each in (*position.top[:num_top], position.chosen):
            best.setdefault(name(each.token_id), _value(each))
        return best

    return {
        "tokens": [name(token_id) for token_id in token_ids],
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
