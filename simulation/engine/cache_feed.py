"""Tells whoever wants to know what came to and went from a simulated engine's prefix cache."""

from dataclasses import dataclass, field

from baton.engine.kv.block_hash import BlockHash, extend_hashes, root_hash
from baton.engine.kv.block_manager import BlockManager
from baton.engine.kv.prefix_cache import CacheChanges
from baton.engine.request import Request

MAX_PENDING = 1 << 20  # hashes that a subscriber may lag behind


@dataclass(frozen=True, slots=True)
class BlockContent:
    """What a block holds, for front ends whose events name it."""

    parent: BlockHash  # of a first block: the root of its salt
    token_ids: tuple[int, ...]

    @property
    def block_hash(self) -> BlockHash:
        """The block's own address."""
        hashes: list[BlockHash] = []
        extend_hashes(hashes, self.token_ids, len(self.token_ids), self.parent)
        return hashes[0]


@dataclass(slots=True, eq=False)
class CacheSubscription:
    """What one reader has not been told yet; at first that is the whole cache."""

    feed: "CacheFeed"
    is_lost: bool = False  # it lagged too far behind, and has to subscribe again
    _stored: dict[BlockHash, None] = field(default_factory=dict)
    _removed: dict[BlockHash, None] = field(default_factory=dict)

    def take(self) -> CacheChanges:
        """What came and went. A block's parent is told before it or with it."""
        self.feed.flush()
        changes = CacheChanges(list(self._stored), list(self._removed))
        self._stored.clear()
        self._removed.clear()
        return changes

    def close(self) -> None:
        """Ends the subscription."""
        self.feed.end(self)

    def add(self, changes: CacheChanges) -> None:
        """Merges newer changes into the pending ones; what came and went between two looks is not told."""
        for block_hash in changes.removed:
            if block_hash in self._stored:
                del self._stored[block_hash]
            else:
                self._removed[block_hash] = None
        for block_hash in changes.stored:
            if block_hash in self._removed:
                del self._removed[block_hash]
            else:
                self._stored[block_hash] = None
        if len(self._stored) + len(self._removed) > MAX_PENDING:
            self.is_lost = True
            self._stored.clear()
            self._removed.clear()


class CacheFeed:
    """Owns the subscriptions to one engine's cache.

    With `keeps_content` it knows the tokens of every cached block, for events that carry them.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self.keeps_content = False  # to be set before the first request
        self._blocks = blocks
        self._subscriptions: list[CacheSubscription] = []
        self._contents: dict[BlockHash, BlockContent] = {}
        self._full: dict[BlockHash, BlockContent] = {}  # since the last flush; some of it may be evicted already

    def subscribe(self) -> CacheSubscription:
        """A subscription that starts with all that is cached."""
        self._distribute()
        subscription = CacheSubscription(self)
        subscription.add(CacheChanges(stored=self._blocks.cache.snapshot()))
        self._subscriptions.append(subscription)
        return subscription

    def end(self, subscription: CacheSubscription) -> None:
        """Tells the subscription nothing more."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def content(self, block_hash: BlockHash) -> BlockContent:
        """What a cached block holds. Raises KeyError if it is not cached, or contents are not kept."""
        return self._contents[block_hash]

    def note_full_blocks(self, request: Request, num_computed_before: int) -> None:
        """Keeps the contents of the request's blocks that became full since it had so many computed tokens.

        Older ones that the cache has lost are offered to it again with these, so their contents are kept too.
        """
        size, hashes = self._blocks.block_size, request.block_hashes
        first, last = num_computed_before // size, request.num_computed_tokens // size
        if not self.keeps_content or first == last:
            return
        for index in reversed(range(last)):
            if index < first and hashes[index] in self._contents:
                return  # and so are all before it
            parent = hashes[index - 1] if index else root_hash(request.cache_salt)
            tokens = tuple(request.token_ids[index * size : (index + 1) * size])
            self._full[hashes[index]] = BlockContent(parent, tokens)

    def flush(self) -> None:
        """Distribute the changes since the last call; without subscriptions they stay in the cache."""
        if not self._subscriptions and not self.keeps_content:
            return
        self._distribute()

    def _distribute(self) -> None:
        changes = self._blocks.cache.take_changes()
        if self.keeps_content:
            for block_hash in changes.removed:
                del self._contents[block_hash]
            for block_hash in changes.stored:
                self._contents[block_hash] = self._full[block_hash]
            self._full.clear()
        if not changes.stored and not changes.removed:
            return
        for subscription in self._subscriptions:
            subscription.add(changes)
