"""A group between two changes of its members, as both sides of its rendezvous have it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from baton.protos import group_pb2

DIGITS = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True)
class Life:
    """A worker from one start to its end."""

    name: str  # the same over restarts
    incarnation: str  # fresh at every start
    address: str  # host:port of its gRPC server

    def __str__(self) -> str:
        return f"{self.name}/{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Epoch:
    """Who is in the group, rank by rank."""

    number: int
    lives: tuple[Life, ...]
    store: str = ""  # empty: not open yet

    @property
    def members(self) -> tuple[str, ...]:
        """The lives as an engine knows them."""
        return tuple(map(str, self.lives))


def in_rank_order(lives: Iterable[Life]) -> tuple[Life, ...]:
    """Ordered by host, so that ranks of a node follow each other, and there by name.

    Numbers are ordered by their value: decode-2 stands before decode-10.
    """
    return tuple(sorted(lives, key=lambda life: (_natural(_host(life)), _natural(life.name), life.name)))


def _host(life: Life) -> str:
    return life.address.rpartition(":")[0]


def _natural(name: str) -> tuple[str | int, ...]:
    """Texts and numbers by turns, so that two names can be compared."""
    return tuple(int(part) if number % 2 else part for number, part in enumerate(DIGITS.split(name)))


def life_to_proto(life: Life) -> group_pb2.Life:
    """The message of a life."""
    return group_pb2.Life(name=life.name, incarnation=life.incarnation, address=life.address)


def life_from_proto(message: group_pb2.Life) -> Life:
    """The life of a message."""
    return Life(message.name, message.incarnation, message.address)


def epoch_to_proto(epoch: Epoch) -> group_pb2.Epoch:
    """The message of an epoch."""
    return group_pb2.Epoch(number=epoch.number, members=map(life_to_proto, epoch.lives), store=epoch.store)


def epoch_from_proto(message: group_pb2.Epoch) -> Epoch:
    """The epoch of a message."""
    return Epoch(message.number, tuple(map(life_from_proto, message.members)), message.store)
