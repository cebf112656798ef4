"""Configuration of a process of simulated workers."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from baton.settings.registry_url import parse_registry_url
from baton.settings.values import OptionError
from baton.settings.worker_config import WILDCARDS, Role
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.workers.worker_config import SimulatedWorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """Options of the process, and the spec of all its workers."""

    prefill: int = 0  # number of workers of each role
    decode: int = 0
    both: int = 0
    host: str = "127.0.0.1"
    model: str = "simulated"  # name of the served model
    fingerprint: str = "simulated"  # of the KV; only workers with equal fingerprints hand prompts over
    worker_prefix: str = ""  # of the workers' ids, so that they are unique among several processes
    time_scale: float = 1.0  # real seconds per second of the spec
    registry: str | None = None  # URL of the registry where routers find the workers; None: routers need the addresses
    lease_s: float = 10.0  # how long the registry keeps a worker that no longer renews its entry
    drain_timeout_s: float = 30.0  # how long running requests may take to finish after SIGTERM
    progress_fd: int | None = None  # progress is written here as JSON lines
    spec: WorkerSpec = field(default_factory=WorkerSpec)

    def __post_init__(self) -> None:
        """Raise OptionError for an impossible value or combination."""
        if self.prefill + self.decode + self.both == 0:
            raise OptionError("there is no worker to simulate; set --both, or --prefill and --decode")
        if self.registry is not None:
            parse_registry_url(self.registry)
            if self.host in WILDCARDS:
                raise OptionError(f"host: routers cannot reach {self.host}; registered workers need a specific address")
        try:
            self.spec.scaled(self.time_scale)
        except ValueError as error:
            raise OptionError(str(error)) from error

    def workers(self) -> Iterator[SimulatedWorkerConfig]:
        """Yield the config of each worker."""
        counts: tuple[tuple[Role, int], ...] = (("prefill", self.prefill), ("decode", self.decode), ("both", self.both))
        for role, count in counts:
            for index in range(count):
                yield SimulatedWorkerConfig(
                    worker_id=f"{self.worker_prefix}{role}-{index}",
                    role=role,
                    host=self.host,
                    model=self.model,
                    fingerprint=self.fingerprint,
                    time_scale=self.time_scale,
                    spec=self.spec,
                )
