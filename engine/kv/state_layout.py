"""Layout of recurrent state in blocks of the KV pool; no torch.

The state of a request is stored in a fixed number of blocks, as float32. A layer's state fills whole blocks if it is
larger than one; otherwise a block has the states of several layers.

If blocks have several shards, so does the state: each shard of its blocks has the states of an equal part of all heads,
in the same layout. A rank therefore reads the states of its heads with the same shards as its KV.
"""

from dataclasses import dataclass

from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.delta_net import DeltaNetConfig
from baton.engine.errors import UnsupportedModel
from baton.engine.kv.dtype import STATE_ITEM_BYTES
from baton.engine.mamba import Mamba2Config


@dataclass(frozen=True, slots=True)
class StatePlace:
    """Place of a layer's state: some of the state's blocks, and the same columns of each."""

    blocks: slice
    columns: slice


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Division of a request's state into blocks, and the distance of checkpoints.

    Sizes are those of a shard, in float32 numbers.
    """

    num_layers: int
    layer_size: int
    block_size: int
    checkpoint_tokens: int  # a checkpoint is stored after each multiple of these
    num_shards: int = 1  # of a block of the whole model

    @classmethod
    def of(
        cls, net: DeltaNetConfig | Mamba2Config, shard_bytes: int, checkpoint_tokens: int, num_shards: int = 1
    ) -> "StateLayout":
        """Return the layout of a model's state in blocks of `num_shards` shards of `shard_bytes` bytes.

        The net can be divided into as many; see `check_recurrent`. Raises UnsupportedModel.
        """
        if shard_bytes % STATE_ITEM_BYTES:
            raise UnsupportedModel(
                f"recurrent state is in float32, but shards of KV blocks have {shard_bytes} bytes, no multiple of 4: "
                "set a block_size that is a multiple of 4"
            )
        size, part = shard_bytes // STATE_ITEM_BYTES, net.part(num_shards)
        return cls(len(net.layers), part.state_size, size, checkpoint_tokens, num_shards)

    @property
    def blocks_per_layer(self) -> int:
        """Number of blocks that a layer's state takes; 1 if it shares one."""
        return -(-self.layer_size // self.block_size)

    @property
    def layers_per_block(self) -> int:
        """Number of layers with state in a block."""
        return max(1, self.block_size // self.layer_size)

    @property
    def num_blocks(self) -> int:
        """Number of blocks of a request's state."""
        return -(-self.num_layers // self.layers_per_block) * self.blocks_per_layer

    def place(self, index: int) -> StatePlace:
        """Return the place of the state of the `index`-th layer with state."""
        if self.layers_per_block == 1:
            return StatePlace(
                slice(index * self.blocks_per_layer, (index + 1) * self.blocks_per_layer), slice(0, self.block_size)
            )
        block, position = divmod(index, self.layers_per_block)
        return StatePlace(slice(block, block + 1), slice(position * self.layer_size, (position + 1) * self.layer_size))


def check_recurrent(config: EngineConfig, model: ModelConfig, num_shards: int) -> None:
    """Raise UnsupportedModel if a model with recurrent layers cannot be served as configured.

    num_shards: of a block of the whole model. The error names the option, or the numbers that cannot be divided.
    """
    if model.recurrent is None:
        return
    if uneven := model.recurrent.uneven(num_shards):
        raise UnsupportedModel(
            f"the recurrent layers of {model.architecture} cannot be divided into {num_shards} shards, one for each "
            f"tensor-parallel rank, or kv_shards: {' and '.join(uneven)}"
        )
    if config.allow_mixed_quantization:
        raise UnsupportedModel(
            f"allow_mixed_quantization is not supported for the recurrent layers of {model.architecture}"
        )
