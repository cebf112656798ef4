"""What a worker is told; plain data, no torch."""

from dataclasses import dataclass
from typing import Literal

from engine.config import EngineConfig
from rpc.option_values import OptionError
from rpc.registry.url import parse_registry_url

Role = Literal["prefill", "decode", "both"]
WILDCARDS = ("", "0.0.0.0", "::")  # every address of the machine, but none that a peer could be told


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Options of one worker process."""

    role: Role
    worker_id: str  # the same over restarts
    engine: EngineConfig
    host: str = "127.0.0.1"  # peers and routers reach the worker here
    port: int = 0  # 0: any free one
    transport: str = "auto"  # auto, shared_memory, nixl, tcp
    served_model_name: str | None = None  # None: the checkpoint directory's name
    registry: str | None = None  # URL of the registry where routers find the worker; None: they are told its address
    lease_s: float = 10.0  # how long the worker stands in the registry without a sign of life
    metrics_port: int | None = None  # Prometheus over HTTP; None: off
    transfer_deadline_s: float = 30.0  # of one read of announced blocks
    drain_timeout_s: float = 30.0  # how long running requests may finish after SIGTERM
    progress_fd: int | None = None  # progress is written here as JSON lines

    def __post_init__(self) -> None:
        """Raises OptionError for a registry that cannot work."""
        if self.registry is None:
            return
        parse_registry_url(self.registry)
        if self.host in WILDCARDS:
            raise OptionError(f"host: routers cannot reach {self.host}; a registered worker listens where they can")
