"""Configuration of a simulated worker."""

from dataclasses import dataclass, field

from baton.settings.names import Role
from baton.simulation.engine.spec import WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedWorkerConfig:
    """One of the workers of a process."""

    worker_id: str
    role: Role
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free port
    model: str = "simulated"
    fingerprint: str = "simulated"  # of the KV; only workers with equal fingerprints hand prompts over
    time_scale: float = 1.0  # real seconds per second of the spec
    spec: WorkerSpec = field(default_factory=WorkerSpec)
