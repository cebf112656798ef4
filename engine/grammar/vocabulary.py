"""The texts of a checkpoint's tokens, as a grammar sees them."""

from pathlib import Path

from tokenizers import Tokenizer

from baton.engine.checkpoint.json_object import MAX_FILE_BYTES
from baton.engine.checkpoint.token_bytes import TokenBytes
from baton.engine.errors import InvalidRequest


def read_tokenizer(directory: str) -> Tokenizer:
    """Return the tokenizer of a model's directory. Raises InvalidRequest if it has no usable tokenizer.json."""
    path = Path(directory) / "tokenizer.json"
    if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
        raise InvalidRequest("structured output needs a tokenizer.json in the model's directory on every worker")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise InvalidRequest(
            f"structured output needs the model's tokenizer.json, which is damaged: {error}"
        ) from error


class Vocabulary:
    """The texts of a tokenizer's tokens."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.special = frozenset(
            token_id for token_id, token in added.items() if token.special and token_id < vocab_size
        )
        self._added = {token.content: token_id for token_id, token in added.items()}
        token_bytes = TokenBytes(tokenizer)
        # Bytes of each token id; empty for special tokens, which are not part of a text, and for ids without a token.
        self.texts = [b"" if place in self.special else token_bytes[place] for place in range(vocab_size)]

    def token_id(self, text: str) -> int | None:
        """Return the id of a token by its text, special or not; None if there is none."""
        if text in self._added:
            return self._added[text]
        wanted = text.encode()
        return next((token_id for token_id, each in enumerate(self.texts) if each and each == wanted), None)
