"""What a router is told; plain data."""

from dataclasses import dataclass
from typing import Literal

PolicyName = Literal["prefix", "round_robin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Options of a router process."""

    model: str  # directory with the tokenizer, config.json and generation_config.json
    served_model_name: str | None = None  # None: the directory's name
    host: str = "127.0.0.1"
    port: int = 8000  # HTTP; 0: any free one
    grpc_port: int | None = None  # 0: any free one; None: no gRPC
    workers: tuple[str, ...] = ()  # host:port of each worker's gRPC server
    policy: PolicyName = "prefix"
    local_prefill_below: int = 64  # a decode worker prefills fewer uncached tokens itself; 0: never
    max_inflight: int = 2048  # choices being generated; beyond it 429
    max_choices: int = 128  # prompts times n of one request
    max_stop: int = 16  # stop strings of one request
    max_body_bytes: int = 16 << 20  # of one HTTP request
    watch_interval_ms: int = 50  # least time between two load reports of a worker
    failover_attempts: int = 3  # how often a request is sent again after its worker was lost
    failover_timeout_s: float = 30.0  # how long such a request waits for a worker
    drain_timeout_s: float = 30.0  # how long running requests may finish after SIGTERM
    progress_fd: int | None = None  # progress is written here as JSON lines

    @property
    def model_name(self) -> str:
        """The name that clients use for the model."""
        return self.served_model_name or self.model.rstrip("/").rsplit("/", 1)[-1]
