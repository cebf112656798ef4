"""What a process of simulated workers is told; plain data."""

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

    prefill: int = 0  # workers of the role
    decode: int = 0
    both: int = 0
    host: str = "127.0.0.1"
    model: str = "simulated"  # name of the model that they say they serve
    fingerprint: str = "simulated"  # handovers go between equal ones
    worker_prefix: str = ""  # of the workers' ids, to tell those of several processes apart
    time_scale: float = 1.0  # real seconds a second of the spec
    registry: str | None = None  # URL of the registry where routers find the workers; None: they are told the addresses
    lease_s: float = 10.0  # how long a worker stands in the registry without a sign of life
    drain_timeout_s: float = 30.0  # how long running requests may finish after SIGTERM
    progress_fd: int | None = None  # progress is written here as JSON lines
    spec: WorkerSpec = field(default_factory=WorkerSpec)

    def __post_init__(self) -> None:
        """Raises OptionError for what cannot be."""
        if self.prefill + self.decode + self.both == 0:
            raise OptionError("there is no worker to simulate; ask for some with --both, or --prefill and --decode")
        if self.registry is not None:
            parse_registry_url(self.registry)
            if self.host in WILDCARDS:
                raise OptionError(f"host: routers cannot reach {self.host}; registered workers listen where they can")
        try:
            self.spec.scaled(self.time_scale)
        except ValueError as error:
            raise OptionError(str(error)) from error

    def workers(self) -> Iterator[SimulatedWorkerConfig]:
        """The config of each worker."""
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
