"""The encoding of a transport's address in a PoolDescription."""

import json
from dataclasses import Field, asdict, fields
from typing import Any, ClassVar, Protocol, TypeVar

from baton.kvtransfer.base import PoolDescription
from baton.kvtransfer.errors import PeerRefused, TransportUnavailable


class Endpoint(Protocol):
    """Any dataclass of strings and integers."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


E = TypeVar("E", bound=Endpoint)


def encode(endpoint: Endpoint) -> bytes:
    """Encode the endpoint as a JSON object."""
    return json.dumps(asdict(endpoint)).encode()


def decode(kind: type[E], peer: PoolDescription, transport: str) -> E:
    """Decode a peer's endpoint for a transport.

    Raises TransportUnavailable if the peer has none, PeerRefused if it is garbled.
    """
    encoded = peer.endpoints.get(transport)
    if encoded is None:
        raise TransportUnavailable(f"peer {peer.incarnation} does not offer {transport}")
    try:
        values = json.loads(encoded)
        given = {field.name: values[field.name] for field in fields(kind)}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PeerRefused(f"peer {peer.incarnation} has a garbled {transport} endpoint: {error!r}") from error
    for field in fields(kind):
        if type(given[field.name]) is not field.type:
            raise PeerRefused(f"peer {peer.incarnation} has a garbled {transport} endpoint: {field.name} is wrong")
    return kind(**given)
