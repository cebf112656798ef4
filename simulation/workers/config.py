"""Configuration of a process of simulated workers."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from baton.settings.names import WILDCARDS, Role
from baton.settings.options import LEASE_S, PROGRESS_FD, option
from baton.settings.otlp_endpoint import OTLP_ENDPOINT, check_otlp_endpoint
from baton.settings.registry_url import parse_registry_url
from baton.settings.values import OptionError
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.workers.worker_config import SimulatedWorkerConfig

MAX_WORKERS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """Options of the process, and the spec of all its workers."""

    prefill: int = option(0, "Workers of this role.", minimum=0, maximum=MAX_WORKERS)
    decode: int = option(0, "Workers of this role.", minimum=0, maximum=MAX_WORKERS)
    colocated: int = option(
        0, "Colocated workers, which prefill and decode.", minimum=0, maximum=MAX_WORKERS, former=("both",)
    )
    host: str = option("127.0.0.1", "Address to listen on; each worker has any free port.")
    model: str = option("simulated", "Name of the model that the workers report.")
    fingerprint: str = option("simulated", "Fingerprint of their KV; prompts are handed over between equal ones.")
    worker_prefix: str = option("", "Prefix of the workers' ids, which distinguishes those of several processes.")
    time_scale: float = option(1.0, "Real seconds for each second of the spec.", minimum=1e-6)
    registry: str | None = option(
        None, "URL of the registry (redis://...) in which routers find the workers. Default: none."
    )
    lease_s: float = option(10.0, LEASE_S, minimum=1, maximum=3600)
    drain_timeout_s: float = option(30.0, "Maximum seconds to wait for running requests on shutdown.", minimum=0)
    otlp_traces_endpoint: str | None = option(None, OTLP_ENDPOINT, aliases=("--otlp-endpoint",))
    progress_fd: int | None = option(None, PROGRESS_FD, minimum=0, hidden=True)
    spec: WorkerSpec = field(default_factory=WorkerSpec)

    def __post_init__(self) -> None:
        """Raise OptionError for an impossible value or combination."""
        if self.prefill + self.decode + self.colocated == 0:
            raise OptionError("there is no worker to simulate; set --colocated, or --prefill and --decode")
        check_otlp_endpoint(self.otlp_traces_endpoint)
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
        counts: tuple[tuple[Role, int], ...] = (
            ("prefill", self.prefill),
            ("decode", self.decode),
            ("both", self.colocated),
        )
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
