"""Incremental conversion of output tokens to text."""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from baton.engine.checkpoint.token_bytes import TokenBytes

CONTEXT_TOKENS = 6  # of the prompt: enough to know whether the output's first word begins with a space
REPLACEMENT = "\ufffd"
MAX_SILENT = 32  # tokens without text (mostly special ones) after which the stream is renewed, as it rereads them
UTF8_DECODER = getincrementaldecoder("utf-8")
MAX_INCOMPLETE = 64  # tokens after which an incomplete character is given up


class Detokenizer(Protocol):
    """Detokenisation state of one output. A character of several tokens is never split."""

    def push(self, token_id: int) -> str:
        """Return the text that the token completes; empty while a character is incomplete."""
        ...

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Return the text that the tokens complete."""
        ...

    def flush(self) -> str:
        """Return replacement characters for an incomplete character, at the end of the output or before a marker."""
        ...


class ByteDetokenizer:
    """Detokenizer for byte-level vocabularies, in which a text is the concatenation of its tokens' bytes."""

    def __init__(self, token_bytes: TokenBytes, skipped: frozenset[int]) -> None:
        """`skipped`: special tokens that are not shown."""
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._decoder = UTF8_DECODER("replace")

    def push(self, token_id: int) -> str:
        """Return the text that the token completes; empty while a character is incomplete."""
        return "" if token_id in self._skipped else self._decoder.decode(self._token_bytes[token_id])

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Return the text that the tokens complete."""
        token_bytes, skipped = self._token_bytes, self._skipped
        return self._decoder.decode(b"".join([token_bytes[each] for each in token_ids if each not in skipped]))

    def flush(self) -> str:
        """Return replacement characters for an incomplete character at the end of the output."""
        return self._decoder.decode(b"", final=True)


class StreamDetokenizer:
    """Detokenizer for all vocabularies: the tokenizer's decoder, whose text may depend on earlier tokens."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._pending: list[int] = []  # tokens without text so far
        context = list(prompt_token_ids[-CONTEXT_TOKENS:])
        text = tokenizer.decode(context, skip_special_tokens=skip_special_tokens) if context else ""
        if not text or text.endswith(REPLACEMENT):
            context = []  # the prompt ends within a character, the rest of which is not shown
        self._shown = context  # the last tokens with text: they decide whether a word begins with a space
        self._stream = DecodeStream(ids=context, skip_special_tokens=skip_special_tokens)

    def push(self, token_id: int) -> str:
        """Return the text that the token completes; empty while a character is incomplete."""
        self._pending.append(token_id)
        try:
            text = self._stream.step(self._tokenizer, token_id)
        except Exception as error:  # the library raises no narrower class
            if "Invalid prefix" not in str(error):
                raise
            # The token changed the text of earlier ones, as only in malformed output: start over from here.
            self._stream = DecodeStream(skip_special_tokens=self._skip_special_tokens)
            text = self._stream.step(self._tokenizer, token_id)
        if text is not None:
            self._shown, self._pending = self._pending, []
            return text
        return self._renew() if len(self._pending) >= MAX_SILENT else ""

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Return the text that the tokens complete."""
        return "".join(map(self.push, token_ids))

    def _renew(self) -> str:
        """Renew the stream, which rereads pending tokens in every step. Gives up a character that stays incomplete."""
        text = self._tokenizer.decode(self._pending, skip_special_tokens=self._skip_special_tokens)
        if text and len(self._pending) < MAX_INCOMPLETE:
            return ""
        self._pending.clear()
        self._stream = DecodeStream(ids=self._shown, skip_special_tokens=self._skip_special_tokens)
        return text

    def flush(self) -> str:
        """Return replacement characters for an incomplete character at the end of the output."""
        pending, self._pending = self._pending, []
        if not pending:
            return ""
        self._stream = DecodeStream(ids=self._shown, skip_special_tokens=self._skip_special_tokens)
        return self._tokenizer.decode(pending, skip_special_tokens=self._skip_special_tokens)
