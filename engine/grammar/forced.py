"""The tokens that a grammar forces, where it allows one text only."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

MAX_CACHED = 16_384
MAX_CHARS = 128  # of a forced text that decide about its first token


@dataclass(frozen=True, slots=True)
class ForcedToken:
    """A token at the start of a forced text."""

    token_id: int
    num_chars: int


class ForcedTokens:
    """Tokens of forced texts, divided as the model's tokenizer would divide them, and as the model has learnt.

    The last token of a text is not forced, because it might be longer with the text that follows. A forced token is a
    function of the text alone, so that the tokens do not depend on how many of them are appended at once.
    """

    def __init__(self, tokenizer: Tokenizer, token_texts: Sequence[bytes]) -> None:
        """token_texts: bytes of each token id; empty for special tokens."""
        self._tokenizer = tokenizer
        self._token_texts = token_texts
        self._cache: OrderedDict[str, ForcedToken | None] = OrderedDict()  # least recently added first

    def first(self, text: str) -> ForcedToken | None:
        """Return the token that a forced text begins with; None if the model chooses it. Thread-safe."""
        if len(text) < 2:
            return None
        text = text[:MAX_CHARS]
        try:
            return self._cache[text]  # one look: another thread may evict the text at any time
        except KeyError:
            pass
        token = self._find(text)
        self._cache[text] = token
        if len(self._cache) > MAX_CACHED:
            self._cache.popitem(last=False)
        return token

    def _find(self, text: str) -> ForcedToken | None:
        token_ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        if len(token_ids) < 2 or token_ids[0] >= len(self._token_texts):
            return None
        try:
            token_text = self._token_texts[token_ids[0]].decode()
        except UnicodeDecodeError:  # a part of a character
            return None
        # A tokenizer may change a text, for example by a space in front of it.
        return ForcedToken(token_ids[0], len(token_text)) if token_text and text.startswith(token_text) else None
