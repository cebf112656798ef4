"""Conversion of pool descriptions to and from protobuf."""

from baton.kvtransfer.base import PoolDescription
from baton.protos import worker_pb2


def pool_from_proto(proto: worker_pb2.KVPool) -> PoolDescription:
    """Return the description of a peer's pool."""
    return PoolDescription(
        incarnation=proto.incarnation,
        fingerprint=proto.fingerprint,
        num_blocks=proto.num_blocks,
        block_bytes=proto.block_bytes,
        endpoints=dict(proto.endpoints),
        checksum=proto.checksum or "xxh3",
    )


def pool_to_proto(pool: PoolDescription) -> worker_pb2.KVPool:
    """Return the message that describes a pool to a peer."""
    return worker_pb2.KVPool(
        incarnation=pool.incarnation,
        fingerprint=pool.fingerprint,
        num_blocks=pool.num_blocks,
        block_bytes=pool.block_bytes,
        endpoints=dict(pool.endpoints),
        checksum=pool.checksum,
    )
