"""Tokens of the inputs of an embedding request."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from baton.engine.errors import InvalidRequest
from baton.router.embeddings.request import MAX_TOKENS, EmbeddingRequest, Input, input_name
from baton.router.errors import FieldError
from baton.router.inline_work import Pace
from baton.router.limits import CONTEXT_LENGTH_EXCEEDED
from baton.router.text.tokenizer import Tokenizer, truncated

INPUT_BYTES, TOKEN_BYTES = 640, 5  # memory of an input, with the hashes of its blocks, and of a token
MAX_TRUNCATED_CHARS = 1 << 20  # of a text to be truncated, all of which is tokenised; more if the context has more


def held_bytes(tokens: Sequence[Sequence[int]]) -> int:
    """Return about the bytes that the inputs of a request take until it ends."""
    return INPUT_BYTES * len(tokens) + TOKEN_BYTES * sum(map(len, tokens))


@dataclass(frozen=True, slots=True)
class InputTokenizer:
    """Tokenizer of inputs, with the model's bounds."""

    tokenizer: Tokenizer
    vocab_size: int
    context_len: int  # maximum tokens of an input

    async def tokens(
        self, body: EmbeddingRequest, inputs: Iterable[Input], cache_salt: str, client: str
    ) -> "list[array[int]]":
        """Return the token ids of each input, each as 32 bits. Clients take turns at the tokenizer.

        Raises FieldError that names the first input that is empty, too long, or not of the vocabulary.
        """
        most, pace = body.max_tokens(self.context_len), Pace()
        tokens: list[array[int]] = []
        num_tokens = 0
        for place, each in enumerate(inputs):
            name = input_name(body.input, place)
            token_ids: list[int] = []
            if each and isinstance(each, str):  # an empty text is an error, also if it would get special tokens
                token_ids = await self._encoded(body, each, name, most, cache_salt, client)
            elif not isinstance(each, str):
                token_ids = self._checked(body, each, name, most)
            if not token_ids:
                raise FieldError(name, f"{name} is empty; at least one token is needed")
            if len(token_ids) > self.context_len:
                raise self._too_long(name, f"{len(token_ids)} tokens")
            num_tokens += len(token_ids)
            if num_tokens > MAX_TOKENS:
                raise FieldError("input", f"the inputs have over {MAX_TOKENS} tokens, the limit of one request")
            tokens.append(array("I", token_ids))  # which may wait for long: a list takes ten times as much
            await pace.give_turn()
        return tokens

    async def _encoded(
        self, body: EmbeddingRequest, text: str, name: str, most: int | None, cache_salt: str, client: str
    ) -> list[int]:
        max_chars = self.context_len * self.tokenizer.max_token_chars
        if len(text) > max_chars and most is None:
            raise self._too_long(name, f"{len(text)} characters, of which {self.context_len} tokens have {max_chars}")
        if len(text) > max(max_chars, MAX_TRUNCATED_CHARS):
            raise FieldError(name, f"{name} has {len(text)} characters; at most {MAX_TRUNCATED_CHARS} can be truncated")
        try:
            if most is None:
                return await self.tokenizer.encode(text, body.add_special_tokens, cache_salt, client)
            keeps_end = body.truncation_side == "left"
            return await self.tokenizer.encode_truncated(
                text, most, keeps_end, body.add_special_tokens, cache_salt, client
            )
        except InvalidRequest as error:
            raise FieldError(name, f"{name}: {error}") from error

    def _checked(self, body: EmbeddingRequest, given: list[int], name: str, most: int | None) -> list[int]:
        """Return token ids, which get no special tokens."""
        if given and (min(given) < 0 or max(given) >= self.vocab_size):
            raise FieldError(name, f"{name} has a token id outside 0 to {self.vocab_size - 1}")
        return given if most is None else truncated(given, most, body.truncation_side == "left")

    def _too_long(self, name: str, size: str) -> FieldError:
        return FieldError(
            name,
            f"This model's maximum context length is {self.context_len} tokens. However, {name} has {size}. Please "
            "reduce its length, or set truncate_prompt_tokens.",
            CONTEXT_LENGTH_EXCEEDED,
        )
