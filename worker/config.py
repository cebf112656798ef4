"""Configuration of a worker; plain data, imports no torch."""

import os
from dataclasses import dataclass, field

from baton.engine.config import EngineConfig
from baton.settings.names import GPU_TRANSPORTS, TRANSPORTS, WILDCARDS, MetricsNames, Role, is_loopback, registered_name
from baton.settings.options import (
    LEASE_S,
    METRICS_NAMES,
    PROGRESS_FD,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
    TLS_SERVER_NAME,
    described,
    option,
)
from baton.settings.otlp_endpoint import OTLP_ENDPOINT, check_otlp_endpoint
from baton.settings.registry_url import parse_registry_url
from baton.settings.store_directory import store_directory
from baton.settings.values import OptionError
from baton.worker.device import check_device

LONGEST_STEP_S = 20.0
LONGEST_CPU_STEP_S = 180.0  # for a prompt chunk of a large model on few cores
MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Options of one worker process."""

    role: Role = field(metadata=described("Role of the worker."))
    worker_id: str = field(metadata=described("Name of the worker, stable over restarts."))
    engine: EngineConfig
    host: str = option("127.0.0.1", "Address to listen on.")  # for peers and routers
    port: int = option(0, "Port of its gRPC server; 0 for any free one.", minimum=0, maximum=65535)
    uds: str | None = option(None, "Path of a Unix socket for the gRPC server instead of its port.", hidden=True)
    transport: str = option(
        "auto",
        "How KV blocks are read from other workers; on GPUs auto, nixl, nccl or staged.",
        choices=tuple(dict.fromkeys(TRANSPORTS + GPU_TRANSPORTS)),
    )
    kv_port: int = option(
        0,
        "Port for KV reads by tcp, or for nixl's handshake; 0 for any free one. With auto, tcp has it and nixl the "
        "next one; staged takes three ports, and auto on GPUs four.",
        minimum=0,
        maximum=65534,
    )
    kv_host_memory_bytes: int | None = option(
        None,
        "Host memory for KV blocks below the KV cache, shared by the machine's workers of one model. Default: none.",
        minimum=1 << 16,
    )
    kv_disk: str | None = option(None, "Directory for KV blocks below the KV cache. Default: none.")
    kv_disk_bytes: int = option(32 << 30, "Size limit of kv_disk.", minimum=1 << 16)
    kv_store: str | None = option(
        None,
        "Store for KV blocks that all workers share: redis://, rediss://, s3://BUCKET/PREFIX, a directory, or "
        "nixl-posix:///DIR (also nixl-gds, nixl-gds-mt, nixl-obj). Default: none.",
        secret=True,
    )
    kv_store_bytes: int = option(256 << 30, "Size limit of kv_store if it is a directory.", minimum=1 << 16)
    kv_store_ttl_s: float = option(86400.0, "Seconds after which kv_store forgets a block.", minimum=1)
    kv_store_key_file: str | None = option(
        None, "File with the 256-bit key that encrypts the blocks in kv_disk and kv_store. Default: not encrypted."
    )
    max_pinned_fraction: float = option(
        0.25,
        "Largest share of the KV cache that pinned prefixes may hold (`/v1/cache/pins`), 0 to 1; 0: none.",
        minimum=0,
        maximum=1,
    )
    served_model_name: str | None = option(None, "Name of the model. Default: the checkpoint directory's name.")
    registry: str | None = option(
        None, "URL of the registry (redis://...) in which routers find the worker. Default: none.", secret=True
    )
    lease_s: float = option(10.0, LEASE_S, minimum=1, maximum=3600)
    metrics_port: int | None = option(None, "Port for Prometheus metrics. Default: none.", minimum=0, maximum=65535)
    transfer_deadline_s: float = option(30.0, "Maximum seconds for one read of reported blocks.", minimum=0)
    handover_timeout_s: float = option(
        600.0,
        "Maximum seconds without progress of a handover while the prefill worker sends keep-alives, the wait in its "
        "queue included; the decode worker then asks the next one or computes the prompt.",
        minimum=1,
    )
    orphan_timeout_s: float = option(
        10.0,
        "Seconds for which a decode worker keeps the output of a resumable request after its end or the loss of "
        "its router; 0: none.",
        minimum=0,
    )
    drain_timeout_s: float = option(
        30.0,
        "Maximum seconds to wait for running requests on shutdown; decode workers then hand the rest over to others.",
        minimum=0,
        aliases=("--shutdown-timeout",),
    )
    max_step_s: float | None = option(
        None,
        "Maximum seconds of one engine step; a process whose step takes longer ends and is restarted. "
        "Default: 20, on a CPU 180.",
        minimum=0.1,
    )
    tensor_parallel: int = option(
        1,
        "Ranks of the worker, processes of one machine or of `nnodes`; each computes a part of every layer.",
        minimum=1,
        maximum=64,
        aliases=("--tensor-parallel-size", "-tp"),
    )
    nnodes: int = option(
        1,
        "Nodes over which the worker's tensor-parallel ranks are divided evenly. The same command is started on each, "
        "with its own node_rank and host.",
        minimum=1,
        maximum=64,
    )
    node_rank: int = option(
        0,
        "Number of this node. 0 leads: it has the worker's requests. The others only run their ranks.",
        minimum=0,
        maximum=63,
    )
    master_addr: str = option("127.0.0.1", "Host at which node 0 waits for the other nodes, its `host`.")
    master_port: int = option(
        29501, "Port at which node 0 waits for the other nodes; there, 0 for any free one.", minimum=0, maximum=65535
    )
    node_timeout_s: float = option(
        600.0, "Maximum seconds until all nodes have connected to node 0.", minimum=0.1, maximum=86400
    )
    expert_parallel: int = option(
        1,
        "Ranks over which a model's experts are spread: workers with their own requests and KV, or this worker's "
        "ranks if equal to tensor_parallel.",
        minimum=1,
        maximum=1024,
    )
    enable_expert_parallel: bool = option(
        False, "Keep each expert whole on one of the tensor-parallel ranks, instead of a part of it on each."
    )
    rendezvous: str | None = option(
        None,
        "host:port of the group's `baton rendezvous`; registry/NAME: the one registered under that name. Default: "
        "the one registered as `default`.",
    )
    group: str = option("experts", "Name of the group of ranks at the rendezvous.")
    application: str = option("", "Name of the application that placed the worker, whose autoscaler counts it.")
    group_port: int = option(
        0, "Port on which other ranks wake this one; 0 for any free one.", minimum=0, maximum=65535
    )
    min_expert_ranks: int = option(
        1,
        "Minimum ranks of the group, whose memory must hold all experts; with fewer it pauses until more join. The "
        "group's size at its start is the upper limit.",
        minimum=1,
        maximum=1024,
    )
    all2all_backend: str = option(
        "all_to_all",
        "How tokens are sent to experts of other ranks: with the process group's all-to-all, or, in steps of few "
        "tokens, with nixl_ep between GPUs.",
        choices=("all_to_all", "nixl_ep"),
    )
    enable_eplb: bool = option(False, "Rebalance experts by their measured load (EPLB).")
    num_redundant_experts: int = option(0, "Replicas of a layer's experts, over all ranks.", minimum=0, maximum=65536)
    eplb_step_interval: int = option(3000, "Steps between two rebalances of the experts.", minimum=1)
    eplb_num_nodes: int = option(
        1,
        "Nodes of the ranks, with the same number on each, in the order of their names; each of a model's expert "
        "groups stays on one node.",
        minimum=1,
        maximum=1024,
    )
    strict: bool = option(False, "Start only if every check of the machine by `baton doctor` is ok.")
    metrics_names: MetricsNames = option("baton", METRICS_NAMES)
    otlp_traces_endpoint: str | None = option(None, OTLP_ENDPOINT, aliases=("--otlp-endpoint",))
    tls_cert: str | None = option(None, TLS_CERT)
    tls_key: str | None = option(None, TLS_KEY)
    tls_ca: str | None = option(None, TLS_CA)
    tls_server_name: str | None = option(None, TLS_SERVER_NAME)
    progress_fd: int | None = option(None, PROGRESS_FD, minimum=0, hidden=True)

    @property
    def ranks_per_node(self) -> int:
        """Number of tensor-parallel ranks on each node."""
        return self.tensor_parallel // self.nnodes

    @property
    def ranks_here(self) -> range:
        """Tensor-parallel ranks on this node."""
        return self.ranks_on(self.node_rank)

    def ranks_on(self, node: int) -> range:
        """Return the tensor-parallel ranks on a node."""
        return range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node)

    @property
    def kv_ports(self) -> range:
        """Ports from `kv_port` on: one per rank here, or several if several transports may need one; empty for 0."""
        if not self.kv_port:
            return range(0)
        return range(self.kv_port, self.kv_port + self.ranks_per_node * self.kv_ports_of_a_rank)

    @property
    def kv_ports_of_a_rank(self) -> int:
        """Number of KV ports per rank."""
        if self.transport == "staged":  # tcp's and nixl's, which read the windows, and its own
            return 3
        if self.transport == "auto":  # the same three and nccl's, or tcp's and nixl's
            return 4 if self.is_on_gpu else 2
        return 1

    @property
    def kv_tiers(self) -> list[str]:
        """Names of the options with stores below the KV cache."""
        stores = {
            "kv_host_memory_bytes": self.kv_host_memory_bytes,
            "kv_disk": self.kv_disk,
            "kv_store": self.kv_store,
        }
        return [name for name, value in stores.items() if value is not None]

    @property
    def has_kv_stores(self) -> bool:
        """Whether there are stores below the KV cache."""
        return bool(self.kv_tiers)

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
        check_otlp_endpoint(self.otlp_traces_endpoint)
        self._check_kv_stores()
        self._check_nodes()
        if self.registry is None:
            return
        parse_registry_url(self.registry)
        if self.host in WILDCARDS:
            raise OptionError(f"host: routers cannot reach {self.host}; set an address that they can reach")

    def _check_kv_stores(self) -> None:
        if self.has_kv_stores and not self.engine.enable_prefix_caching:
            raise OptionError(
                "enable_prefix_caching: off, but only blocks of the prefix cache are stored; turn it on, or leave out "
                "kv_host_memory_bytes, kv_disk and kv_store"
            )
        scheme, separator, _ = (self.kv_disk or "").partition("://")
        if separator and scheme != "file":
            raise OptionError(f"kv_disk: {scheme}:// is not a directory; set a path, or kv_store for a server")
        disk, shared = (store_directory(url) if url else None for url in (self.kv_disk, self.kv_store))
        if disk is not None and shared is not None and os.path.realpath(disk) == os.path.realpath(shared):
            raise OptionError(
                f"kv_store: {shared} is the directory of kv_disk, too; leave out one of the two, or set another one"
            )
        if self.kv_store_key_file is not None and self.kv_disk is None and self.kv_store is None:
            raise OptionError("kv_store_key_file: nothing to encrypt; set kv_disk or kv_store too")

    def _check_nodes(self) -> None:
        if self.node_rank >= self.nnodes:
            raise OptionError(f"node_rank: {self.node_rank}, but nnodes is {self.nnodes}; set 0 to {self.nnodes - 1}")
        if self.nnodes == 1:
            return
        if self.tensor_parallel % self.nnodes:
            raise OptionError(
                f"nnodes: {self.nnodes} nodes cannot have equal shares of {self.tensor_parallel} ranks; set "
                f"tensor_parallel to a multiple of {self.nnodes}"
            )
        if self.host in WILDCARDS or (is_loopback(self.host) and not is_loopback(self.master_addr)):
            raise OptionError(f"host: other nodes cannot reach {self.host}; set this node's address")
        if self.node_rank and is_loopback(self.master_addr) and not is_loopback(self.host):
            raise OptionError(f"master_addr: {self.master_addr} is this node itself; set the host of node 0")
        if self.node_rank and not self.master_port:
            raise OptionError("master_port: 0; set the port at which node 0 waits")
        if not self.node_rank and self.master_port in {self.port, self.metrics_port, *self.kv_ports} - {0}:
            raise OptionError(
                f"master_port: {self.master_port} is already used by port, metrics_port or kv_port; choose another"
            )
        if self.engine.is_on_cpu and self.engine.kv_cache_memory_bytes is None:
            raise OptionError(
                "kv_cache_memory_bytes: missing; nodes without GPUs have no common default, so set the size for a rank"
            )


def rank_suffix(rank: int) -> str:
    """Return the end of a follower rank's id; empty for the first rank."""
    return f"-rank-{rank}" if rank else ""
