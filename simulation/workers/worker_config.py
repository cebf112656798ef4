"""What a simulated worker is told."""

from dataclasses import dataclass, field

from baton.settings.names import Role
from baton.simulation.engine.spec import WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedWorkerConfig:
    """One worker of many in a process."""

    worker_id: str
    role: Role
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    model: str = "simulated"
    fingerprint: str = "simulated"  # handovers go between equal ones
    time_scale: float = 1.0  # real seconds a second of the spec
    spec: WorkerSpec = field(default_factory=WorkerSpec)
