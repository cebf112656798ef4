"""Configuration of a worker; plain data, imports no torch."""

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
LONGEST_CPU_STEP_S = 180.0  # for a prompt chunk of a large model on few cores
MAX_PORT = 65535
WILDCARDS = ("", "0.0.0.0", "::")  # listen on all addresses, but cannot be given to peers


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Options of one worker process."""

    role: Role
    worker_id: str  # stable over restarts
    engine: EngineConfig
    host: str = "127.0.0.1"  # address for peers and routers
    port: int = 0  # 0: any free one
    uds: str | None = None  # path of a Unix socket for gRPC instead of the port; None: host:port
    transport: str = "auto"  # auto, shared_memory, nixl, tcp
    kv_port: int = 0  # port for KV reads, 0: any free one; with auto it is tcp's, and nixl has the next one
    served_model_name: str | None = None  # None: the checkpoint directory's name
    registry: str | None = None  # URL of the registry in which routers find the worker; None: routers have its address
    lease_s: float = 10.0  # lifetime of the registry entry without a renewal
    metrics_port: int | None = None  # Prometheus over HTTP; None: off
    transfer_deadline_s: float = 30.0  # of one read of announced blocks
    orphan_timeout_s: float = 10.0  # how long the output of a resumable request is kept after its end
    drain_timeout_s: float = 30.0  # time for running requests to finish after SIGTERM
    max_step_s: float | None = None  # a longer engine step ends the process; None: 20 s, on a CPU 180 s
    tensor_parallel: int = 1  # ranks of this worker, which share the model; 1: one process has all of it
    expert_parallel: int = 1  # ranks with the experts: workers, or this worker's if equal to tensor_parallel
    enable_expert_parallel: bool = False  # spread the experts over the tensor-parallel ranks
    rendezvous: str | None = None  # host:port of the group's rendezvous; None or registry/NAME: from the registry
    group: str = "experts"  # name of the group at the rendezvous
    group_port: int = 0  # where other ranks wake this one, 0: any free one
    min_expert_ranks: int = 1  # with fewer ranks the group pauses until more join
    all2all_backend: str = "all_to_all"  # sends tokens to experts of other ranks: all_to_all or nixl_ep
    enable_eplb: bool = False  # rebalance experts by their measured load
    num_redundant_experts: int = 0  # replicas of a layer's experts over all ranks
    eplb_step_interval: int = 3000  # steps between two rebalances
    eplb_num_nodes: int = 1  # nodes of the ranks, with the same number on each
    strict: bool = False  # start only if all of the doctor's checks of the machine are ok
    tls_cert: str | None = None  # PEM files for mutual TLS with other processes; None: plaintext
    tls_key: str | None = None
    tls_ca: str | None = None
    tls_server_name: str | None = None  # in every peer's certificate; None: the host of its address
    progress_fd: int | None = None  # progress is written here as JSON lines

    @property
    def kv_ports(self) -> range:
        """Ports from `kv_port` on: one per rank, or several if several transports may need one; empty for 0."""
        if not self.kv_port:
            return range(0)
        return range(self.kv_port, self.kv_port + self.tensor_parallel * self.kv_ports_of_a_rank)

    @property
    def kv_ports_of_a_rank(self) -> int:
        """Number of KV ports per rank."""
        if self.transport == "staged":  # tcp's and nixl's, which read the windows, and its own
            return 3
        if self.transport == "auto":  # the same three and nccl's, or tcp's and nixl's
            return 4 if self.is_on_gpu else 2
        return 1

    @property
    def is_on_gpu(self) -> bool:
        """Whether the worker computes, and keeps its KV, on a GPU."""
        return self.engine.device.partition(":")[0] != "cpu"

    @property
    def group_size(self) -> int:
        """Number of workers over which the experts are spread."""
        return 1 if self.tensor_parallel > 1 else self.expert_parallel

    @property
    def longest_step_s(self) -> float:
        """Maximum seconds of an engine step: `max_step_s` or its default for the device."""
        if self.max_step_s is not None:
            return self.max_step_s
        return LONGEST_STEP_S if self.is_on_gpu else LONGEST_CPU_STEP_S

    def __post_init__(self) -> None:
        """Raise OptionError for options that are invalid or exclude each other."""
        check_device(self.engine.device)
        if self.kv_ports and self.kv_ports[-1] > MAX_PORT:
            raise OptionError(
                f"kv_port: {self.kv_port} takes ports {self.kv_ports[0]} to {self.kv_ports[-1]}, and the last port is "
                f"{MAX_PORT}; take one from 1 to {MAX_PORT + 1 - len(self.kv_ports)}"
            )
        used = {self.port, self.metrics_port}.intersection(self.kv_ports)
        if used:
            raise OptionError(
                f"kv_port: {self.kv_port} takes ports {self.kv_ports[0]} to {self.kv_ports[-1]}, and {used.pop()} is "
                "already used by port or metrics_port; choose different ports"
            )
        if self.kv_port and self.transport == "shared_memory":
            raise OptionError("kv_port: shared memory has no port; omit kv_port, or choose another transport")
        served = GPU_TRANSPORTS if self.is_on_gpu else (*TRANSPORTS, "staged")
        if self.transport not in served:
            raise OptionError(
                f"transport: {self.transport} does not move KV that is on {self.engine.device}; choose one of "
                f"{', '.join(served)}"
            )
        registered_name(self.rendezvous)
        if self.enable_expert_parallel:
            object.__setattr__(self, "expert_parallel", max(self.expert_parallel, self.tensor_parallel))
        if 1 < self.tensor_parallel != self.expert_parallel > 1:
            raise OptionError(
                f"expert_parallel: {self.expert_parallel}, but the experts are on the {self.tensor_parallel} ranks of "
                f"a tensor-parallel worker; set {self.tensor_parallel} to keep each expert whole on one rank, or 1"
            )
        if self.group_size > 1 and self.rendezvous is None and self.registry is None:
            raise OptionError(
                "rendezvous: expert_parallel needs the host:port of a `baton rendezvous`, or a registry that has one"
            )
        if self.registry is None:
            return
        parse_registry_url(self.registry)
        if self.host in WILDCARDS:
            raise OptionError(f"host: routers cannot reach {self.host}; set an address that they can reach")
