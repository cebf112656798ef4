"""Pooling of requests over the steps that compute their prompts."""

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.pooling.config import PoolingConfig, PoolingParams
from baton.engine.request import Request
from baton.engine.scheduling.schedule import ScheduledRequest


class Pooler:
    """Sums of the hidden states of requests whose prompts are not fully computed; a sum ends with its request.

    A step changes nothing before it is collected, so it may be repeated.
    """

    def __init__(self, config: PoolingConfig) -> None:
        self.config = config
        self._sums: WeakKeyDictionary[Request, Tensor] = WeakKeyDictionary()  # [hidden] float64 on the CPU

    def ranges(self, scheduled: Sequence[ScheduledRequest]) -> dict[int, range]:
        """Return the tokens of a step whose hidden states are summed, as ranges in the batch, by place of the request.

        A request may have none: only its last chunk has the last token, and only its first chunk the first.
        """
        ranges: dict[int, range] = {}
        end = 0
        for place, item in enumerate(scheduled):
            first, end = end, end + item.num_new_tokens
            if item.request.pooling is None:
                continue
            if self.config.kind == "mean":
                ranges[place] = range(first, end)
            elif self.config.kind == "last" and item.is_last:
                ranges[place] = range(end - 1, end)
            elif self.config.kind == "cls" and item.start == 0:
                ranges[place] = range(first, first + 1)
        return ranges

    def collect(self, scheduled: Sequence[ScheduledRequest], sums: Mapping[int, Tensor]) -> dict[int, bytes]:
        """Add the sums of a step, by place of the request; return the embeddings of requests whose prompt it completes.

        sums: each [hidden] float64 on the CPU. An embedding is float32, little-endian.
        """
        embeddings: dict[int, bytes] = {}
        for place, item in enumerate(scheduled):
            request = item.request
            if request.pooling is None:
                continue
            if item.start == 0:
                self._sums.pop(request, None)  # of the chunks before a preemption
            if (new := sums.get(place)) is not None:
                earlier = self._sums.get(request)
                self._sums[request] = new if earlier is None else earlier + new
            if item.is_last:
                num_tokens = request.num_tokens if self.config.kind == "mean" else 1
                embeddings[place] = self._embedding(self._sums.pop(request) / num_tokens, request.pooling)
        return embeddings

    def _embedding(self, pooled: Tensor, params: PoolingParams) -> bytes:
        vector = pooled.float()[: params.dimensions]
        normalizes = self.config.normalizes if params.normalizes is None else params.normalizes
        if normalizes:
            vector = F.normalize(vector, dim=0)
        return vector.contiguous().numpy().astype("<f4", copy=False).tobytes()


def sums_on_host(places: Sequence[int], sums: Tensor) -> dict[int, Tensor]:
    """Wait for sums [num_places, hidden] and return them on the CPU, by place."""
    return dict(zip(places, sums.cpu().unbind(), strict=True))
