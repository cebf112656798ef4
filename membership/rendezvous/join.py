"""A member's wish to join, checked: whatever a stranger sends."""

from dataclasses import dataclass

import grpc

from baton.membership.rendezvous.config import RendezvousSettings
from baton.membership.rendezvous.epoch import Epoch, Life, epoch_from_proto, life_from_proto
from baton.protos import group_pb2
from baton.settings.names import MAX_ADDRESS_CHARS, NAME_RULE, is_host_port, is_name, is_worker_address

MAX_EPOCH = 1 << 62  # leaves room in 64 bits for all that may follow
MAX_SHOWN_CHARS = 100


class Refused(Exception):
    """A member is not taken, or is so no more; the text says why, `code` how gRPC says it."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Join:
    """Who joins which group, with what."""

    group: str
    life: Life
    fingerprint: str
    size: int
    last_epoch: Epoch | None  # the newest that this life knows


def read_join(message: group_pb2.JoinGroup, settings: RendezvousSettings) -> Join:
    """The wish of a message. Raises Refused (INVALID_ARGUMENT) for what none can be."""
    _check_name("group", message.group)
    _check_name("fingerprint", message.fingerprint)
    life = life_from_proto(message.life)
    _check_life("life", life)
    if not 1 <= message.size <= settings.max_members:
        raise _wrong(f"size is {message.size}, but must be from 1 to {settings.max_members}")
    last_epoch = None
    if message.HasField("last_epoch"):
        last_epoch = _read_epoch(message.last_epoch, settings)
    return Join(message.group, life, message.fingerprint, message.size, last_epoch)


def check_address(what: str, address: str, may_be_empty: bool = False) -> None:
    """Raises Refused (INVALID_ARGUMENT) unless it is host:port."""
    if may_be_empty and not address:
        return
    if not is_host_port(address):
        raise _wrong(f"{what} is {_shown(address)}, but must be host:port of at most {MAX_ADDRESS_CHARS} characters")


def _read_epoch(message: group_pb2.Epoch, settings: RendezvousSettings) -> Epoch:
    if not 1 <= message.number <= MAX_EPOCH:
        raise _wrong(f"last_epoch.number is {message.number}, but must be from 1 to {MAX_EPOCH}")
    if len(message.members) > settings.max_members:
        raise _wrong(f"last_epoch has {len(message.members)} members, over the limit of {settings.max_members}")
    epoch = epoch_from_proto(message)
    for life in epoch.lives:
        _check_life("last_epoch.members", life)
    if len({life.name for life in epoch.lives}) < len(epoch.lives):
        raise _wrong("last_epoch.members has a name twice; each member has a name of its own")
    check_address("last_epoch.store", epoch.store, may_be_empty=True)
    return epoch


def _check_life(what: str, life: Life) -> None:
    _check_name(f"{what}.name", life.name)
    _check_name(f"{what}.incarnation", life.incarnation)
    if not is_worker_address(life.address):
        check_address(f"{what}.address", life.address)


def _check_name(what: str, text: str) -> None:
    if not is_name(text):
        raise _wrong(f"{what} is {_shown(text)}, but must be {NAME_RULE}")


def _wrong(text: str) -> Refused:
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, text)


def _shown(text: str) -> str:
    """A stranger's words, short and in ASCII as gRPC's texts of errors must be."""
    return ascii(text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "...")
