"""What a cluster tells whoever watches it."""

from collections.abc import Callable
from dataclasses import dataclass

from baton.rpc.progress import Progress


@dataclass(frozen=True, slots=True)
class Started:
    """A process was started; `life` counts from 1."""

    name: str
    life: int
    pid: int


@dataclass(frozen=True, slots=True)
class Progressed:
    """A process said where it stands."""

    name: str
    progress: Progress


@dataclass(frozen=True, slots=True)
class Died:
    """A process ended that should not have; it is started again after `restart_in_s` seconds."""

    name: str
    reason: str
    restart_in_s: float


@dataclass(frozen=True, slots=True)
class ClusterReady:
    """A request would be served at `url`."""

    url: str
    started_in_s: float


@dataclass(frozen=True, slots=True)
class Ending:
    """The processes are being ended."""


Event = Started | Progressed | Died | ClusterReady | Ending
Listener = Callable[[Event], None]
