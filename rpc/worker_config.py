"""What a worker is told; plain data, no torch."""

from dataclasses import dataclass
from typing import Literal

from engine.config import EngineConfig

Role = Literal["prefill", "decode", "both"]


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
    metrics_port: int | None = None  # Prometheus over HTTP; None: off
    transfer_deadline_s: float = 30.0  # of one read of announced blocks
    drain_timeout_s: float = 30.0  # how long running requests may finish after SIGTERM
    progress_fd: int | None = None  # progress is written here as JSON lines
