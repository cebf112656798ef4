"""The feed of a simulated engine's prefix cache: blocks stored and removed, for front ends in its process."""

from dataclasses import dataclass, field

from baton.engine.kv.block_hash import BlockHash, extend_hashes, root_hash
from baton.engine.kv.block_manager import BlockManager
from baton.engine.kv.prefix_cache import CacheChanges
from baton.engine.request import Request

MAX_PENDING = 1 << 20  # hashes that a slow subscriber has not taken yet


@dataclass(frozen=True, slots=True)
class BlockContent:
    """The content of a block, for front ends whose events contain it."""

    parent: BlockHash  # the root of the salt for the first block of a chain
    token_ids: tuple[int, ...]

    @property
    def block_hash(self) -> BlockHash:
        """Hash of the block."""
        hashes: list[BlockHash] = []
        extend_hashes(hashes, self.token_ids, len(self.token_ids), self.parent)
        return hashes[0]


@dataclass(slots=True, eq=False)
class CacheSubscription:
    """Changes that one reader has not taken yet; initially the whole cache."""

    feed: "CacheFeed"
    is_lost: bool = False  # lagged by more than MAX_PENDING; its reader must subscribe again
    _stored: dict[BlockHash, None] = field(default_factory=dict)
    _removed: dict[BlockHash, None] = field(default_factory=dict)

    def take(self) -> CacheChanges:
        """Return and clear the pending changes. A block's parent is reported with it or earlier."""
        self.feed.flush()
        changes = CacheChanges(list(self._stored), list(self._removed))
        self._stored.clear()
        self._removed.clear()
        return changes

    def close(self) -> None:
        """End the subscription."""
        self.feed.end(self)

    def add(self, changes: CacheChanges) -> None:
        """Merge newer changes into the pending ones; a block stored and removed between two calls is left out."""
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
    """The subscriptions to one engine's cache.

    With `keeps_content` it keeps the tokens of every cached block, for events that contain them.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self.keeps_content = False  # to be set before the first request
        self._blocks = blocks
        self._subscriptions: list[CacheSubscription] = []
        self._contents: dict[BlockHash, BlockContent] = {}
        self._full: dict[BlockHash, BlockContent] = {}  # since the last flush; some may be evicted already

    def subscribe(self) -> CacheSubscription:
        """Return a subscription that starts with all cached blocks."""
        self._distribute()
        subscription = CacheSubscription(self)
        subscription.add(CacheChanges(stored=self._blocks.cache.snapshot()))
        self._subscriptions.append(subscription)
        return subscription

    def end(self, subscription: CacheSubscription) -> None:
        """Remove a subscription; no-op if it has ended."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def content(self, block_hash: BlockHash) -> BlockContent:
        """Return the content of a cached block. Raises KeyError if it is not cached, or contents are not kept."""
        return self._contents[block_hash]

    def note_full_blocks(self, request: Request, num_computed_before: int) -> None:
        """Keep the contents of the request's blocks that became full since it had `num_computed_before` tokens.

        Older blocks that were evicted are stored again together with these, so their contents are kept too.
        """
        size, hashes = self._blocks.block_size, request.block_hashes
        first, last = num_computed_before // size, request.num_computed_tokens // size
        if not self.keeps_content or first == last:
            return
        for index in reversed(range(last)):
            if index < first and hashes[index] in self._contents:
                return  # the earlier blocks are there too
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
