"""What a worker is told; plain data, no torch."""

from dataclasses import dataclass
from typing import Literal

from baton.engine.config import EngineConfig
from baton.settings.device import check_device
from baton.settings.names import registered_name
from baton.settings.registry_url import parse_registry_url
from baton.settings.values import OptionError
from baton.settings.worker_options import GPU_TRANSPORTS, TRANSPORTS

Role = Literal["prefill", "decode", "both"]
LONGEST_STEP_S = 20.0
LONGEST_CPU_STEP_S = 180.0  # a chunk of a prompt on few cores and a large model
MAX_PORT = 65535
WILDCARDS = ("", "0.0.0.0", "::")  # every address of the machine, but none that a peer could be told


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Options of one worker process."""

    role: Role
    worker_id: str  # the same over restarts
    engine: EngineConfig
    host: str = "127.0.0.1"  # peers and routers reach the worker here
    port: int = 0  # 0: any free one
    uds: str | None = None  # path of a Unix socket for gRPC instead of the port; None: host:port
    transport: str = "auto"  # auto, shared_memory, nixl, tcp
    kv_port: int = 0  # where peers come for KV blocks, 0: any free one; with auto that is tcp's, and nixl has the next
    served_model_name: str | None = None  # None: the checkpoint directory's name
    registry: str | None = None  # URL of the registry where routers find the worker; None: they are told its address
    lease_s: float = 10.0  # how long the worker stands in the registry without a sign of life
    metrics_port: int | None = None  # Prometheus over HTTP; None: off
    transfer_deadline_s: float = 30.0  # of one read of announced blocks
    orphan_timeout_s: float = 10.0  # how long the output of a resumable request is remembered after its end
    drain_timeout_s: float = 30.0  # how long running requests may finish after SIGTERM
    max_step_s: float | None = None  # a longer step of the engine ends the process; None: 20 s, on a CPU 180 s
    tensor_parallel: int = 1  # ranks that have the model together, one worker; 1: it is whole here
    expert_parallel: int = 1  # ranks with the experts: workers, or, as many as tensor_parallel, this one's
    enable_expert_parallel: bool = False  # spread them over the ranks of tensor_parallel
    rendezvous: str | None = None  # host:port of what knows the group's ranks; None, registry/NAME: where that says
    group: str = "experts"  # its name there
    group_port: int = 0  # where the other ranks wake this one, 0: any free one
    min_expert_ranks: int = 1  # with fewer ranks left the group computes nothing, and waits for more
    all2all_backend: str = "all_to_all"  # how tokens get to experts of other ranks: or nixl_ep
    enable_eplb: bool = False  # place experts anew by their measured load
    num_redundant_experts: int = 0  # replicas of a layer's experts over all ranks
    eplb_step_interval: int = 3000  # steps from one placement to the next
    eplb_num_nodes: int = 1  # that the ranks are on, equally many on each
    strict: bool = False  # start only if the doctor finds nothing wrong with the machine
    tls_cert: str | None = None  # PEM files for mutual TLS with other processes; None: plaintext
    tls_key: str | None = None
    tls_ca: str | None = None
    tls_server_name: str | None = None  # in every peer's certificate; None: the host of its address
    progress_fd: int | None = None  # progress is written here as JSON lines

    @property
    def kv_ports(self) -> range:
        """What comes of `kv_port`: a port for each rank, or some where several transports may want one."""
        if not self.kv_port:
            return range(0)
        return range(self.kv_port, self.kv_port + self.tensor_parallel * self.kv_ports_of_a_rank)

    @property
    def kv_ports_of_a_rank(self) -> int:
        """From a rank's first to the next one's."""
        if self.transport == "staged":  # tcp's and nixl's, where windows are read, and its own
            return 3
        if self.transport == "auto":  # the same three and nccl's, or tcp's and nixl's
            return 4 if self.is_on_gpu else 2
        return 1

    @property
    def is_on_gpu(self) -> bool:
        """Whether its KV is."""
        return self.engine.device.partition(":")[0] != "cpu"

    @property
    def group_size(self) -> int:
        """Workers over which the experts are spread."""
        return 1 if self.tensor_parallel > 1 else self.expert_parallel

    @property
    def longest_step_s(self) -> float:
        """What `max_step_s` comes to."""
        if self.max_step_s is not None:
            return self.max_step_s
        return LONGEST_STEP_S if self.is_on_gpu else LONGEST_CPU_STEP_S

    def __post_init__(self) -> None:
        """Raises OptionError for ports that are the same, an unknown device, a registry that cannot work, a group
        without rendezvous."""
        check_device(self.engine.device)
        if self.kv_ports and self.kv_ports[-1] > MAX_PORT:
            raise OptionError(
                f"kv_port: {self.kv_port} takes ports {self.kv_ports[0]} to {self.kv_ports[-1]}, and {MAX_PORT} is the "
                f"last that there is; take one from 1 to {MAX_PORT + 1 - len(self.kv_ports)}"
            )
        taken = {self.port, self.metrics_port}.intersection(self.kv_ports)
        if taken:
            raise OptionError(
                f"kv_port: {self.kv_port} takes ports {self.kv_ports[0]} to {self.kv_ports[-1]}, and {taken.pop()} is "
                "the port of something else; give each its own"
            )
        if self.kv_port and self.transport == "shared_memory":
            raise OptionError("kv_port: shared memory has no port; leave it out, or take another transport")
        served = GPU_TRANSPORTS if self.is_on_gpu else (*TRANSPORTS, "staged")
        if self.transport not in served:
            raise OptionError(
                f"transport: {self.transport} does not move KV that is on {self.engine.device}; take one of "
                f"{', '.join(served)}"
            )
        registered_name(self.rendezvous)
        if self.enable_expert_parallel:
            object.__setattr__(self, "expert_parallel", max(self.expert_parallel, self.tensor_parallel))
        if 1 < self.tensor_parallel != self.expert_parallel > 1:
            raise OptionError(
                f"expert_parallel: {self.expert_parallel}, but the {self.tensor_parallel} ranks of a tensor-parallel "
                f"worker have its experts; give {self.tensor_parallel} to keep each whole on one of them, or 1"
            )
        if self.group_size > 1 and self.rendezvous is None and self.registry is None:
            raise OptionError(
                "rendezvous: expert_parallel needs the host:port of a `baton rendezvous`, or the registry that has one"
            )
        if self.registry is None:
            return
        parse_registry_url(self.registry)
        if self.host in WILDCARDS:
            raise OptionError(f"host: routers cannot reach {self.host}; a registered worker listens where they can")
