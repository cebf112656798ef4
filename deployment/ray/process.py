"""Process of one replica: the same command line as on one machine without Ray.

A replica is planned as a cluster with a single process. The node fills in its address, the replica's share of its cores
and memory, and the checkpoint.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from baton.deployment.local.cluster_plan import Checkpoint, ClusterPlan, check_experts, plan_cluster, rendezvous_spec
from baton.deployment.local.machine import Machine
from baton.deployment.ray.options import ReplicaOptions
from baton.deployment.ray.settings import ROLES, RaySettings
from baton.engine.checkpoint.gguf.directory import checkpoint_directory
from baton.engine.checkpoint.model_config import model_config_of
from baton.engine.config import EngineConfig
from baton.membership.rendezvous.config import RendezvousConfig
from baton.process.child import ProcessSpec
from baton.router.config import SECRETS
from baton.router.model_options import directory_name
from baton.settings.names import DEFAULT_NAME, REGISTRY, Role, host_port
from baton.settings.values import OptionError

ANY_PORT = 0
HAS_NO_DOWNLOAD = (
    "has no effect on a Ray node, which needs a directory; download it there with `baton fetch --revision`"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Location of a replica."""

    address: str  # of the node
    machine: Machine  # the replica's share of the node
    application: str = DEFAULT_NAME  # name of its application, unique in the registry


def share_of(machine: Machine, replica: ReplicaOptions) -> Machine:
    """Return the node's share for a replica; memory is proportional to cores unless it is reserved."""
    num_cores = max(1, min(math.floor(replica.num_cpus), machine.num_cores))
    proportional = machine.memory_bytes * num_cores // machine.num_cores
    return Machine(num_cores, min(replica.memory_bytes or proportional, machine.memory_bytes))


@contextmanager
def worker_process(settings: RaySettings, role: Role, worker_id: str, place: Place) -> Iterator[ProcessSpec]:
    """Yield a worker's process, which must become ready within the block.

    Raises OptionError for options that the checkpoint does not support, EngineError for an unsupported checkpoint.
    """
    leader = host_port(place.address, ANY_PORT)
    with _with_registry(_worker_spec(settings, role, worker_id, place, 0, leader), settings) as spec:
        yield spec


def node_process(
    settings: RaySettings, role: Role, worker_id: str, place: Place, number: int, leader: str
) -> ProcessSpec:
    """Return the process of a worker on its node `number`, for a first process at `leader` (host:port).

    Raises OptionError or EngineError, like `worker_process`.
    """
    return _logged(_worker_spec(settings, role, worker_id, place, number, leader), settings)


def _worker_spec(
    settings: RaySettings, role: Role, worker_id: str, place: Place, node: int, leader: str
) -> ProcessSpec:
    num_nodes = settings.num_nodes(role)
    nodes = _nodes(num_nodes, node, leader, settings.deployments[role].replicas.start_timeout_s)
    plan = _plan(settings, role, place.machine.times(num_nodes))
    [worker] = plan.workers
    shared = settings.shared
    worker = replace(
        worker,
        worker_id=worker_id,
        host=place.address,
        lease_s=shared.lease_s,
        expert_parallel=settings.cluster.cluster.num_expert_ranks(role),
        group=role,  # the whole pool
        application=place.application,
        rendezvous=f"{REGISTRY}/{place.application}" if settings.group_size(role) > 1 else None,
        tls_cert=shared.tls_cert,
        tls_key=shared.tls_key,
        tls_ca=shared.tls_ca,
        tls_server_name=shared.tls_server_name,
        **nodes,  # type: ignore[arg-type]  # of the fields' types
    )
    [_, spec] = replace(plan, workers=(worker,)).specs(_log_dir(settings))
    return spec


def _nodes(num_nodes: int, node: int, leader: str, timeout_s: float) -> dict[str, object]:
    """Return the options of one node of a worker on several."""
    if num_nodes == 1:
        return {}
    host, _, port = leader.rpartition(":")
    master = {"master_addr": host.strip("[]"), "master_port": int(port)}
    return {"nnodes": num_nodes, "node_rank": node, **master, "node_timeout_s": timeout_s}


@contextmanager
def rendezvous_process(settings: RaySettings, rendezvous_id: str, place: Place) -> Iterator[ProcessSpec]:
    """Yield the rendezvous process, which must become ready within the block. Raises OptionError."""
    shared = settings.shared
    config = RendezvousConfig(
        host=place.address,
        name=place.application,
        lease_s=shared.lease_s,
        drain_timeout_s=settings.longest_drain_s,  # of the workers, if all end together
        tls_cert=shared.tls_cert,
        tls_key=shared.tls_key,
        tls_ca=shared.tls_ca,
        tls_server_name=shared.tls_server_name,
    )
    spec = rendezvous_spec(config, _log_dir(settings), settings.log)
    log_path = _log_dir(settings) / f"{rendezvous_id}.log"
    with _with_registry(replace(spec, name=rendezvous_id, log_path=log_path), settings) as complete:
        yield complete


@contextmanager
def _with_registry(spec: ProcessSpec, settings: RaySettings) -> Iterator[ProcessSpec]:
    """Add the registry's URL in a config file. It may have a password, and command lines are visible to all users."""
    with TemporaryDirectory(prefix="baton-replica-", ignore_cleanup_errors=True) as directory:
        file = Path(directory) / "registry.yaml"
        file.write_text(yaml.safe_dump({"registry": settings.registry_url()}), encoding="utf-8")
        yield _logged(replace(spec, argv=(*spec.argv, f"--config={file}")), settings)


def router_process(settings: RaySettings, router_id: str, place: Place) -> ProcessSpec:
    """Return a router's process. Raises OptionError or EngineError, like `worker_process`."""
    plan = _plan(settings, None, place.machine)
    shared = settings.shared
    router = replace(
        plan.router,
        host=settings.host or place.address,
        port=settings.port,
        tls_cert=shared.tls_cert,
        tls_key=shared.tls_key,
        tls_ca=shared.tls_ca,
        tls_server_name=shared.tls_server_name,
    )
    [spec] = replace(plan, router=router).specs(_log_dir(settings))
    env = {**spec.env, SECRETS["registry"]: settings.registry_url()}
    log_path = _log_dir(settings) / f"{router_id}.log"
    return _logged(replace(spec, name=router_id, log_path=log_path, env=env), settings)


def _plan(settings: RaySettings, role: Role | None, machine: Machine) -> ClusterPlan:
    """Plan a cluster with one worker of the role, or none, without expert-parallel groups."""
    cluster = settings.cluster.cluster.with_workers({each: int(each == role) for each in ROLES})
    cluster = replace(cluster, expert_parallel=1, prefill_expert_parallel=1)
    checkpoint = _checkpoint(settings, role or "decode")
    check_experts(checkpoint.config, checkpoint.name, max(map(settings.cluster.cluster.num_expert_ranks, ROLES)))
    return plan_cluster(replace(settings.cluster, cluster=cluster), checkpoint, machine, log=settings.log)


def _checkpoint(settings: RaySettings, role: Role) -> Checkpoint:
    cluster = settings.cluster.cluster
    model = cluster.model
    assert model is not None  # the settings were checked
    for name in ("revision", "tokenizer_revision"):
        if getattr(cluster, name) is not None:
            raise OptionError(f"{name}: {HAS_NO_DOWNLOAD}")
    directory = Path(model).expanduser()
    if not directory.exists():
        raise OptionError(f"model: {model} is not a directory or GGUF file on this node")
    # A file in the hub's cache is a link to one without a suffix, so links of files are not followed.
    directory = directory.resolve() if directory.is_dir() else directory.absolute()
    tokenizer = _tokenizer(cluster.tokenizer)
    found = checkpoint_directory(directory, with_tokenizer=tokenizer is None)
    engine = EngineConfig(model=str(found), **settings.cluster.engine[role])  # type: ignore[arg-type]  # checked when read
    return Checkpoint(found, directory_name(str(directory)), model_config_of(engine), tokenizer)


def _tokenizer(tokenizer: str | None) -> Path | None:
    if tokenizer is None:
        return None
    directory = Path(tokenizer).expanduser().resolve()
    if not directory.is_dir():
        raise OptionError(f"tokenizer: {tokenizer} is not a directory on this node")
    return directory


def _log_dir(settings: RaySettings) -> Path:
    return Path(settings.cluster.cluster.log_dir or ".").expanduser()


def _logged(spec: ProcessSpec, settings: RaySettings) -> ProcessSpec:
    """Set the log path. Without a `log_dir`, the process writes to the replica's output."""
    if settings.cluster.cluster.log_dir is None:
        return replace(spec, log_path=None)
    _log_dir(settings).mkdir(parents=True, exist_ok=True)
    return spec
