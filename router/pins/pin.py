"""A pin as a router keeps it: its prefix, when it expires, and the workers that hold it."""

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.engine.vision.image import Image
from baton.router.adapters.adapter import Adapter
from baton.router.generation import PromptHashes

SERVER_TTL_S = 900.0  # renewed at each check, of which one may take as long as a placement
SERVER = "server"  # owner of the pins of --pin-prefix; those of clients are digests, or empty


@dataclass(frozen=True, slots=True)
class Prefix:
    """The tokens of a pinned prefix, and the salt, the adapter and the images that their hashes cover."""

    token_ids: "array[int]"
    cache_salt: str
    adapter: Adapter | None = None
    images: tuple[Image, ...] = ()
    _hashes: dict[int, bytes] = field(default_factory=dict, compare=False, repr=False)  # by block size

    @classmethod
    def of(
        cls,
        token_ids: Sequence[int],
        cache_salt: str,
        adapter: Adapter | None = None,
        images: tuple[Image, ...] = (),
    ) -> "Prefix":
        """Return the prefix; its tokens take 4 bytes each."""
        return cls(array("I", token_ids), cache_salt, adapter, images)

    def hashes(self, block_size: int) -> bytes:
        """Return the concatenated hashes of its full blocks."""
        found = self._hashes.get(block_size)
        if found is None:
            token_ids = self.token_ids.tolist()
            hashes = PromptHashes(token_ids, self.cache_salt, self.images, self.adapter)
            found = self._hashes[block_size] = hashes.extended(token_ids, block_size)
        return found


@dataclass(frozen=True, slots=True)
class Holding:
    """When a worker has last confirmed a pin, and how many pins it had dropped by then."""

    num_dropped: int
    confirmed_s: float = field(default_factory=time.monotonic)


@dataclass(slots=True, eq=False)
class Pin:
    """A pin. Workers are the authority on what is pinned; the router keeps what it needs to place it anew."""

    name: str
    owner: str
    prefix: Prefix
    expires_s: float  # on the clock of `time.monotonic`
    max_share: float = 0.0  # of a worker's blocks, for the owner; 0: the worker's limit
    created_s: float = field(default_factory=time.time)
    is_everywhere: bool = False  # on every worker that computes prompts, not on one
    holders: dict[str, Holding] = field(default_factory=dict)  # by incarnation
    strays: set[str] = field(default_factory=set)  # incarnations that may hold it still, and should not
    next_try_s: dict[str, float] = field(default_factory=dict)  # by incarnation, or "" for a new place, after a failure
    num_refusals: int = 0  # in a row, for lack of room
    last_failure: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Identity of the pin: its owner and its name."""
        return self.owner, self.name

    @property
    def num_tokens(self) -> int:
        """Tokens of the prefix, of which the full blocks are held."""
        return len(self.prefix.token_ids)

    @property
    def num_pixel_bytes(self) -> int:
        """Bytes of the images' pixels, which the router keeps to place the pin anew."""
        return sum(len(image.pixels) for image in self.prefix.images)

    def extend(self) -> None:
        """Renew the time to live of a server's pin, which workers release soon after the last router has ended."""
        self.expires_s = time.monotonic() + SERVER_TTL_S

    def ttl_s(self) -> float:
        """Return the seconds until it expires; 0 or less: it has."""
        return self.expires_s - time.monotonic()
