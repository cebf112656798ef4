"""Conversion of poolings to and from protobuf."""

from baton.engine.pooling.config import PoolingConfig, PoolingKind
from baton.protos.worker_pb2 import Pooling
from baton.protos.worker_pb2 import PoolingKind as KindNumber

NUMBERS: dict[PoolingKind, KindNumber.ValueType] = {
    "last": KindNumber.POOLING_KIND_LAST,
    "mean": KindNumber.POOLING_KIND_MEAN,
    "cls": KindNumber.POOLING_KIND_CLS,
}
KINDS = {number: kind for kind, number in NUMBERS.items()}


def pooling_to_proto(pooling: PoolingConfig) -> Pooling:
    """Return the message of a pooling."""
    return Pooling(
        kind=NUMBERS[pooling.kind],
        normalizes=pooling.normalizes,
        size=pooling.size,
        is_matryoshka=pooling.is_matryoshka,
        matryoshka_sizes=pooling.matryoshka_sizes,
    )


def pooling_from_proto(message: Pooling) -> PoolingConfig | None:
    """Return a message's pooling; None for a kind that this release does not know."""
    kind = KINDS.get(message.kind)
    if kind is None:
        return None
    return PoolingConfig(
        kind=kind,
        normalizes=message.normalizes,
        size=message.size,
        is_matryoshka=message.is_matryoshka,
        matryoshka_sizes=tuple(message.matryoshka_sizes),
    )
