"""KV groups: layers that share blocks, and the tokens to which they still attend; no torch.

A block holds `block_size` tokens of one group's layers. All groups have blocks of the same size in one pool, so memory
is divided among them by need. Layers with a window or chunks have separate groups, whose blocks behind the window are
freed (as in vLLM's hybrid KV cache manager).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from baton.engine.attention.span import FULL, AttentionSpan
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.kv.state_layout import StateLayout
from baton.engine.request import NULL_BLOCK, BlockId

MAX_GROUPS = 16  # each has block tables and a plan in every step
MAX_PADDING = 0.25  # of a model's layers: places in blocks that no layer uses


@dataclass(frozen=True, slots=True)
class KVPlace:
    """Group of a layer, and the layer's place in the group's blocks."""

    group: int
    layer: int


@dataclass(frozen=True, slots=True)
class KVGroups:
    """Spans and layers of a model's KV groups; the first group attends to most of the context."""

    block_size: int
    spans: tuple[AttentionSpan, ...] = (FULL,)
    layers: tuple[tuple[int, ...], ...] = ((),)  # of each group; () in the only group: all
    states: StateLayout | None = None  # of the recurrent layers, which are in no group; None: there are none

    @classmethod
    def of(cls, config: EngineConfig, model: ModelConfig) -> "KVGroups":
        """Return the groups of a model.

        One group, which keeps all its blocks, if no layer has a window, the engine does not support groups on its
        device, they are disabled, or the layers cannot be divided into equal groups without much padding.
        """
        if model.recurrent is not None or model.layers_without_attention:
            return cls(config.block_size, layers=(model.kv_layers,))
        if not (config.hybrid_kv_cache and config.is_on_cpu and model.spans):
            return cls(config.block_size)
        kinds: dict[AttentionSpan, list[int]] = {}
        for layer in model.kv_layers:
            span = model.span(layer)
            is_whole = span.size is None or span.size >= model.max_model_len
            kinds.setdefault(FULL if is_whole else span, []).append(layer)
        size = min(map(len, kinds.values()))  # layers of a group
        groups = [
            (span, tuple(layers[first : first + size]))
            for span, layers in sorted(kinds.items(), key=lambda kind: -(kind[0].size or model.max_model_len))
            for first in range(0, len(layers), size)
        ]
        if len(groups) > MAX_GROUPS or len(groups) * size > (1 + MAX_PADDING) * len(model.kv_layers):
            return cls(config.block_size)
        return cls(config.block_size, tuple(span for span, _ in groups), tuple(layers for _, layers in groups))

    def with_states(
        self, config: EngineConfig, model: ModelConfig, shard_bytes: int, num_shards: int = 1
    ) -> "KVGroups":
        """Return the groups with the layout of a model's recurrent state, if any.

        shard_bytes: of each of the `num_shards` shards of a block. Raises UnsupportedModel.
        """
        if model.recurrent is None:
            return self
        states = StateLayout.of(model.recurrent, shard_bytes, config.checkpoint_tokens, num_shards)
        return replace(self, states=states)

    @property
    def num_state_blocks(self) -> int:
        """Number of blocks of a request's recurrent state."""
        return self.states.num_blocks if self.states is not None else 0

    @property
    def num_groups(self) -> int:
        """Number of groups, and of blocks that hold the KV of the same tokens in all layers."""
        return len(self.spans)

    @property
    def has_windows(self) -> bool:
        """Whether any group gives back blocks."""
        return any(span != FULL for span in self.spans)

    def layers_per_block(self, model: ModelConfig) -> int:
        """Return how many layers a block holds; some groups have fewer."""
        return max(map(len, self.layers)) or len(model.kv_layers)

    def place(self, layer: int) -> KVPlace:
        """Return the place of the KV that a layer writes."""
        for group, layers in enumerate(self.layers):
            if layer in layers:
                return KVPlace(group, layers.index(layer))
        return KVPlace(0, layer)

    def first_blocks(self, num_tokens: int) -> list[int]:
        """Return for each group the index of the first block to which the token after `num_tokens` tokens attends."""
        return [span.first(num_tokens) // self.block_size for span in self.spans]

    def transfer_order(self, num_tokens: int) -> "TransferOrder":
        """Return the order in which the blocks of a prefix of `num_tokens` tokens are transferred."""
        num_state_blocks = self.num_state_blocks if num_tokens else 0
        return TransferOrder(tuple(self.first_blocks(num_tokens)), -(-num_tokens // self.block_size), num_state_blocks)


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """The part of a prefix's KV that one block has."""

    index: int  # in the block table; of a state's block, that of the prefix's last block
    number: int  # of the KV group; of a state's block, the number of groups plus the block's number in the state


@dataclass(frozen=True, slots=True)
class TransferOrder:
    """Blocks of a prefix that later tokens attend to, in the order of their tokens and then of their groups, and after
    them those of the recurrent state at its end.

    Both ends of a transfer derive it from the number of tokens, so a block's number in it names its group and tokens.
    """

    first_blocks: tuple[int, ...]  # of each group: index in its block table
    end: int  # index after the last block
    num_state_blocks: int = 0

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return self.num_before(self.end) + self.num_state_blocks

    def num_before(self, index: int) -> int:
        """Return how many blocks have an index below `index` in their block tables."""
        return sum(max(0, min(index, self.end) - first) for first in self.first_blocks)

    def blocks(
        self,
        tables: Sequence[Sequence[BlockId]],
        start: int = 0,
        end: int | None = None,
        state: Sequence[BlockId] = (),
    ) -> list[BlockId]:
        """Return the blocks with indices from `start` up to, excluding, `end` (default: the last block's, included).

        tables: the block table of each group; state: the blocks of the recurrent state at the end of the prefix, which
        are appended. Returns none if several tables have been freed in the meantime.
        """
        end = self.end if end is None else min(end, self.end)
        if len(tables) == 1:
            return [*tables[0][max(start, self.first_blocks[0]) : end], *state]
        if len(tables) != len(self.first_blocks) or min(map(len, tables)) < end:
            return []
        by_group = list(zip(tables, self.first_blocks, strict=True))
        return [table[index] for index in range(start, end) for table, first in by_group if index >= first]

    def places(self) -> list[BlockPlace]:
        """Return the places of the blocks that `blocks` returns, in the same order."""
        num_groups = len(self.first_blocks)
        by_index = [
            BlockPlace(index, group)
            for index in range(min(self.first_blocks), self.end)
            for group, first in enumerate(self.first_blocks)
            if index >= first
        ]
        return by_index + [BlockPlace(self.end - 1, num_groups + each) for each in range(self.num_state_blocks)]

    def num_usable(self, num_blocks: int, num_known: int) -> int:
        """Return the end of the prefix that can be used after the first `num_blocks` blocks have arrived.

        num_known: end of the prefix that was there before. A shorter prefix would need other blocks in front of its
        end, or another recurrent state, and these are not transferred.
        """
        if num_blocks >= self.num_blocks:
            return max(num_known, self.end)
        if any(self.first_blocks) or self.num_state_blocks:
            return num_known
        return max(num_known, num_blocks // len(self.first_blocks))


def held(table: Sequence[BlockId]) -> list[BlockId]:
    """Return the blocks in a block table, without the places of those that were given back."""
    return [block for block in table if block != NULL_BLOCK]
