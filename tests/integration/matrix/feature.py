"""A row of the matrix, and the workers that several rows share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature and the request that uses it."""

    name: str
    body: Mapping[str, Any]
    path: str = COMPLETIONS
    num_completions: int = 1


class Status(Enum):
    """Kind of a cell that no move tests."""

    REFUSED = "refused"
    NOT_APPLICABLE = "n/a"
    ELSEWHERE = "own test"


@dataclass(frozen=True, slots=True)
class Untested:
    """Reason why a cell is not tested by its move."""

    status: Status
    reason: str  # as the page prints it
    evidence: str = ""  # refused: pattern of the error; elsewhere: path of the test


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Model and options of workers, and the features that are tested on them."""

    name: str
    model: str  # key of `checkpoints.MAKERS`
    features: tuple[Feature, ...]
    flags: tuple[str, ...] = ()  # of all workers
    decode_flags: tuple[str, ...] = ()  # of decode workers: they change how tokens are computed, but not which
    router: Mapping[str, Any] = field(default_factory=dict)  # options of routers
    invocation: tuple[int, ...] = ()  # tokens that invoke the LoRA adapter; empty: it is not an activated one
    small_pool_blocks: int = 40  # room for two requests, but not for four
    longest: int = 512  # tokens of prompt and output
    untested: Mapping[str, Untested] = field(default_factory=dict)  # by the name of the move
    needs_vnni: bool = False
    usual_moves: tuple[str, ...] = ("local",)  # those that `make test` runs too; the dear ones are with small models

    def is_tested(self, move: str) -> bool:
        """Return whether the move is tested with the features."""
        return move not in self.untested
