"""Attention of a model whose layers are in several KV groups."""

from collections.abc import Sequence

from torch import Tensor

from baton.engine.attention.base import AttentionBackend
from baton.engine.attention.kind import PLAIN, AttentionKind
from baton.engine.execution.batch import Batch
from baton.engine.kv.scales import UNSCALED, KVScales


class GroupedAttention:
    """A backend for each KV group, each with a plan over the group's own block tables."""

    def __init__(self, backends: Sequence[AttentionBackend]) -> None:
        """backends: of each group, in order."""
        self._backends = backends

    def plan(self, batch: Batch) -> None:
        """Prepare every group for a step."""
        for group, backend in enumerate(self._backends):
            backend.plan(batch.of_group(group))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer_cache: Tensor,
        batch: Batch,
        scales: KVScales = UNSCALED,
        kind: AttentionKind = PLAIN,
    ) -> Tensor:
        """Return the attention of one layer, computed by the backend of its group."""
        return self._backends[kind.group].forward(q, k, v, layer_cache, batch, scales, kind)

    def forward_latent(self, q: Tensor, latent: Tensor, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Return the attention of one MLA layer: these attend to the whole context, in the first group."""
        return self._backends[0].forward_latent(q, latent, layer_cache, batch)
