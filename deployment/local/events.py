"""Events of a cluster, for its listener."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from baton.process.progress import Progress


@dataclass(frozen=True, slots=True)
class Started:
    """A process was started; `life` is 1 for its first start."""

    name: str
    life: int
    pid: int


@dataclass(frozen=True, slots=True)
class Progressed:
    """A process reported its progress."""

    name: str
    progress: Progress


@dataclass(frozen=True, slots=True)
class Died:
    """A process ended unexpectedly; it is restarted after `restart_in_s` seconds."""

    name: str
    reason: str
    restart_in_s: float
    num_deaths: int = 1  # in a row


@dataclass(frozen=True, slots=True)
class Warned:
    """A process logged a warning for the user."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class ServingWorker:
    """A worker as the router reports it."""

    worker_id: str
    role: str
    kv_tokens: int  # capacity of its KV cache
    max_model_len: int  # prompt plus output
    transports: tuple[str, ...]  # transports by which peers can read its KV


@dataclass(frozen=True, slots=True)
class ClusterReady:
    """The cluster serves requests at `url`."""

    url: str
    started_in_s: float  # since the user started this process, imports included
    workers: tuple[ServingWorker, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The cluster shuts down before it was ready, because a process failed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ending:
    """The cluster is shutting down."""

    num_requests: int | None = 0  # requests that the router waits for; None: unknown
    timeout_s: float = 0.0  # longest wait


Event = Started | Progressed | Died | Warned | ClusterReady | GivenUp | Ending
Listener = Callable[[Event], None]


def process_age_s() -> float:
    """Return the seconds since this process started."""
    started_s = psutil.Process().create_time() - psutil.boot_time()  # since boot, which is known to a second only
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
