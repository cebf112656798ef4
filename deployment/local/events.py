"""Events of a cluster, for its listener."""

from collections.abc import Callable
from dataclasses import dataclass

from baton.process.progress import Progress


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
    num_deaths: int = 1  # in a row


@dataclass(frozen=True, slots=True)
class Warned:
    """A process logged a warning that matters to the user."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class ServingWorker:
    """A worker as the router reports it."""

    worker_id: str
    role: str
    kv_tokens: int  # that fit into its KV cache
    max_model_len: int  # of a request: prompt plus output
    transports: tuple[str, ...]  # by which peers can read its KV


@dataclass(frozen=True, slots=True)
class ClusterReady:
    """A request would be served at `url`."""

    url: str
    started_in_s: float
    workers: tuple[ServingWorker, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The cluster was never ready and ends, because a process does not get ready."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ending:
    """The processes are being ended."""

    num_requests: int | None = 0  # that the router waits for; None: not known
    timeout_s: float = 0.0  # how long it waits


Event = Started | Progressed | Died | Warned | ClusterReady | GivenUp | Ending
Listener = Callable[[Event], None]
