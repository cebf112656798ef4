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


def token_texts(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    """Return the bytes of each token id below `vocab_size`.

    Special tokens, which are not part of an output's text, and ids without a token are empty.
    """
    special = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    token_bytes = TokenBytes(tokenizer)
    return [b"" if token_id in special else token_bytes[token_id] for token_id in range(vocab_size)]
