"""Epochs of a group: its members between two changes, on both sides of the rendezvous."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from baton.protos import group_pb2

DIGITS = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True)
class Life:
    """One run of a worker, from start to end."""

    name: str  # stable over restarts
    incarnation: str  # new at every start
    address: str  # host:port of its gRPC server

    def __str__(self) -> str:
        return f"{self.name}/{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Epoch:
    """The members of a group in rank order, until the next change."""

    number: int
    lives: tuple[Life, ...]
    store: str = ""  # host:port of the first rank's store; empty: not open yet

    @property
    def members(self) -> tuple[str, ...]:
        """Members as `name/incarnation`, as engines know them."""
        return tuple(map(str, self.lives))


def in_rank_order(lives: Iterable[Life]) -> tuple[Life, ...]:
    """Return lives sorted by host, so that a node's ranks are consecutive, then by name.

    Numbers are compared by value: decode-2 comes before decode-10.
    """
    return tuple(sorted(lives, key=lambda life: (_natural(_host(life)), _natural(life.name), life.name)))


def _host(life: Life) -> str:
    return life.address.rpartition(":")[0]


def _natural(name: str) -> tuple[str | int, ...]:
    """Return a sort key of alternating texts and numbers."""
    return tuple(int(part) if number % 2 else part for number, part in enumerate(DIGITS.split(name)))


def life_to_proto(life: Life) -> group_pb2.Life:
    """Return a life's message."""
    return group_pb2.Life(name=life.name, incarnation=life.incarnation, address=life.address)


def life_from_proto(message: group_pb2.Life) -> Life:
    """Return a message's life."""
    return Life(message.name, message.incarnation, message.address)


def epoch_to_proto(epoch: Epoch) -> group_pb2.Epoch:
    """Return an epoch's message."""
    return group_pb2.Epoch(number=epoch.number, members=map(life_to_proto, epoch.lives), store=epoch.store)


def epoch_from_proto(message: group_pb2.Epoch) -> Epoch:
    """Return a message's epoch."""
    return Epoch(message.number, tuple(map(life_from_proto, message.members)), message.store)
