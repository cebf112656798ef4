"""Embeddings of recent images, by their digests."""

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor

Key = tuple[str, bytes]  # cache salt of the tenant, digest of the image


class EmbeddingCache:
    """LRU cache of images' embeddings, bounded in bytes; the newest entry stays even if it exceeds the bound alone.

    Keyed by cache salt, so that its timing reveals nothing about images of other tenants.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Key, Tensor] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: Key, make: Callable[[], Tensor]) -> Tensor:
        """Return the embeddings of an image, made by `make` if they are not cached."""
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
            return found
        made = self._entries[key] = make()
        self.num_bytes += made.nbytes
        while self.num_bytes > self._max_bytes and len(self._entries) > 1:
            self.num_bytes -= self._entries.popitem(last=False)[1].nbytes
        return made
