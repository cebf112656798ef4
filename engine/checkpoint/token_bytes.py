"""The bytes of each token of a vocabulary."""

import json
import re

from tokenizers import Tokenizer

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
METASPACE = "\u2581"


def byte_of_character() -> dict[str, int]:
    """Return the byte of each character of a byte-level vocabulary (GPT-2's table).

    Printable Latin-1 characters represent themselves. Characters from U+0100 on represent the other bytes in turn.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


class TokenBytes:
    """The bytes of each token, computed at the first use."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        parts = json.loads(tokenizer.to_str()).get("decoder")
        # Whether a text is the concatenation of its tokens' bytes.
        self.concatenate = parts is not None and parts["type"] == "ByteLevel"
        decoder = json.dumps(parts, ensure_ascii=False)
        self._byte_level = '"ByteLevel"' in decoder
        self._sentencepiece = not self._byte_level and ('"ByteFallback"' in decoder or METASPACE in decoder)
        self._added = {token_id: token.content for token_id, token in tokenizer.get_added_tokens_decoder().items()}
        self._byte_of_character = byte_of_character()
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._find(token_id)
        return known

    def _find(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""  # models may have more logits than the vocabulary has tokens
        if self._byte_level:
            table = self._byte_of_character
            if all(each in table for each in token):
                return bytes([table[each] for each in token])
            return token.encode()  # added to the vocabulary as plain text
        if self._sentencepiece:
            byte = BYTE_TOKEN.fullmatch(token)
            return bytes([int(byte[1], 16)]) if byte else token.replace(METASPACE, " ").encode()
        return self._tokenizer.decode([token_id], skip_special_tokens=False).encode()
