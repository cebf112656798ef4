"""Token ids of texts that were tokenised lately, for each cache salt by itself."""

from collections import OrderedDict
from collections.abc import Sequence
from sys import getsizeof

Key = tuple[str, str]  # cache salt and text

ENTRY_BYTES = 300  # of an entry's place in the cache, about
REFERENCE_BYTES = 8


class PromptCache:
    """Owns texts and their token ids, least recently used first; bounded in bytes. For one thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Key, Sequence[int]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Sequence[int] | None:
        """The text's token ids; None if they are not here."""
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: Key, token_ids: Sequence[int]) -> None:
        """Remembers token ids, and forgets others for them; not those of a text that takes much of the room."""
        size = _size(key, token_ids)
        if size > self._max_bytes // 4 or key in self._entries:
            return
        self._entries[key] = token_ids
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            self.num_bytes -= _size(*self._entries.popitem(last=False))


def _size(key: Key, token_ids: Sequence[int]) -> int:
    """Bytes of an entry; the numbers themselves are shared."""
    return ENTRY_BYTES + sum(map(getsizeof, key)) + REFERENCE_BYTES * len(token_ids)
