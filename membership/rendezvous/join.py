"""Validation of join requests, which may come from any client."""

from dataclasses import dataclass

import grpc

from baton.membership.rendezvous.config import RendezvousSettings
from baton.membership.rendezvous.epoch import Epoch, Life, epoch_from_proto, life_from_proto
from baton.protos import group_pb2
from baton.settings.names import MAX_ADDRESS_CHARS, NAME_RULE, is_host_port, is_name, is_worker_address

MAX_EPOCH = 1 << 62  # leaves room in 64 bits for later epochs
MAX_SHOWN_CHARS = 100


class Refused(Exception):
    """A refused or removed member; the text is the reason, `code` the gRPC status."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Join:
    """A valid request to join a group."""

    group: str
    life: Life
    fingerprint: str
    size: int
    last_epoch: Epoch | None  # newest epoch that the member knows


def read_join(message: group_pb2.JoinGroup, settings: RendezvousSettings) -> Join:
    """Return a message's request. Raises Refused (INVALID_ARGUMENT) if it is invalid."""
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
    """Raise Refused (INVALID_ARGUMENT) unless the address is host:port."""
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
        raise _wrong("last_epoch.members has a name twice; names must be unique")
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
    """Return a client's text for errors: short, and in ASCII, as gRPC requires."""
    return ascii(text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "...")
