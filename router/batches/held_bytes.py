"""Bytes that running requests of batches hold until they end, such as the pixels of their images."""

from baton.router.errors import Overloaded

MAX_BYTES = 256 << 20
RETRY_AFTER_S = 1


class HeldBytes:
    """A bounded count of bytes. A request that is alone may hold any number."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes

    def take(self, num_bytes: int) -> None:
        """Count bytes. Raises Overloaded, and counts nothing, if others leave no room for them."""
        if self.num_bytes and self.num_bytes + num_bytes > self._max_bytes:
            text = f"requests of batches hold {self.num_bytes} bytes, of at most {self._max_bytes}"
            raise Overloaded(text, RETRY_AFTER_S)
        self.num_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Subtract bytes of a request."""
        self.num_bytes -= num_bytes
