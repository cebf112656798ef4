"""A worker's membership in its expert-parallel group."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import torch

from baton.engine.checkpoint.model_config import model_config_of
from baton.engine.engine import Engine
from baton.engine.experts.group import BalanceSettings, ExpertGroup
from baton.engine.experts.nixl_dispatch import check_nixl
from baton.engine.kv.layout import torch_dtype
from baton.engine.parallel.group_view import GroupView
from baton.membership.rendezvous.epoch import Life
from baton.membership.rendezvous.member import GroupMember, Place
from baton.membership.rendezvous.rendezvous_address import rendezvous_address
from baton.membership.rendezvous.wakes import GroupPeerService
from baton.protos import group_pb2_grpc
from baton.rpc.grpc_options import SERVER_OPTIONS
from baton.rpc.listening import listen
from baton.rpc.malformed import RefuseMalformed
from baton.rpc.peers import Channels
from baton.rpc.tls import Security
from baton.worker.config import WorkerConfig

PROTOCOL_VERSION = 1  # incremented with every incompatible change between ranks
STOP_GRACE_S = 0.1  # for wake calls in progress
MAX_QUEUED_WAKES = 16  # different ones; the members of one epoch send at most two until the engine takes the first


class WorkerGroup:
    """The group membership, and the link from the other ranks' wakes to the engine."""

    def __init__(self, config: WorkerConfig, member: GroupMember) -> None:
        self.member = member
        balance = BalanceSettings(
            is_enabled=config.enable_eplb,
            num_redundant=config.num_redundant_experts,
            step_interval=config.eplb_step_interval,
            num_nodes=config.eplb_num_nodes,
        )
        device = torch.device(config.engine.device)
        min_ranks = min(config.min_expert_ranks, config.group_size)
        nixl_hidden = _nixl_hidden(config, device)
        self.experts = ExpertGroup(
            member, config.host, device, balance, nixl_hidden, min_ranks, _rules(config), config.group
        )
        self._call: Callable[[Callable[[Engine], None]], object] | None = None
        self._queued: set[tuple[int, int]] = set()  # wakes that the engine has not taken: epoch and round

    @property
    def failed(self) -> "asyncio.Future[None]":
        """Fails with the reason if the group refuses this worker."""
        return self.member.failed

    def attach(self, call: Callable[[Callable[[Engine], None]], object]) -> None:
        """Forward wakes and new epochs to the engine from now on; `call` runs a function between two steps."""
        self._call = call
        self._notify(self.member.epoch, 0)

    def woken(self, epoch: int, round_number: int) -> bool:
        """Notify the engine that another rank has begun a step; on the event loop.

        Wakes of other epochs are ignored: no rank sleeps in an epoch before all have formed it. Returns False if too
        many different wakes are queued, which must be retried.
        """
        if epoch != self.member.epoch:
            return True
        if len(self._queued) >= MAX_QUEUED_WAKES and (epoch, round_number) not in self._queued:
            return False
        self._notify(epoch, round_number)
        return True

    def on_view(self, view: GroupView) -> None:
        """Notify the engine of a newer view of the group."""
        self._notify(view.epoch, 0)

    def _notify(self, epoch: int, round_number: int) -> None:
        """Queue a wake for the engine unless it is queued already; round 0: a new epoch has begun."""
        wake = (epoch, round_number)
        if self._call is None or wake in self._queued:
            return
        self._queued.add(wake)

        def deliver(engine: Engine) -> None:
            self._queued.discard(wake)  # on the engine's thread, and first: a wake that arrives now is queued again
            engine.woken(epoch, round_number)

        self._call(deliver)

    def leave_engine(self) -> None:
        """Stop the engine's waits for other ranks."""
        self.experts.ranks.leave()

    async def leave(self) -> None:
        """Leave the group: no further steps here, and the other ranks continue in a new epoch."""
        self.leave_engine()
        await self.member.leave()


@asynccontextmanager
async def joined(
    config: WorkerConfig, incarnation: str, security: Security, channels: Channels
) -> AsyncIterator[WorkerGroup | None]:
    """Join the worker's expert-parallel group and leave it at the end; yield None if the worker has no group."""
    if config.group_size == 1:
        yield None
        return
    server = grpc.aio.server(interceptors=[RefuseMalformed()], options=SERVER_OPTIONS)
    uds = None if config.uds is None else f"{config.uds}.group"
    address = listen(server, security, config.host, config.group_port, uds)
    life = Life(config.worker_id, incarnation, address)
    place = Place(config.group, life, config.group_size)
    member = GroupMember(rendezvous_address(config.rendezvous, config.registry), place, security, channels)
    group = WorkerGroup(config, member)
    member.listen(group.on_view)
    group_pb2_grpc.add_GroupPeerServicer_to_server(GroupPeerService(config.group, incarnation, group.woken), server)
    await server.start()
    try:
        yield group
    finally:
        group.leave_engine()
        await member.close()
        await server.stop(STOP_GRACE_S)


def _nixl_hidden(config: WorkerConfig, device: torch.device) -> int | None:
    """Return the hidden size for nixl_ep; None for another backend. Raises EngineError if nixl_ep cannot be used."""
    if config.all2all_backend != "nixl_ep":
        return None
    model = model_config_of(config.engine)
    num_routed = model.moe.num_experts_per_token if model.moe is not None else 0
    check_nixl(model.hidden_size, num_routed, torch_dtype(model.dtype), device)
    return model.hidden_size


def _rules(config: WorkerConfig) -> str:
    """Return the settings by which ranks place experts and talk to each other, which must be equal on all of them."""
    balance = f"{config.enable_eplb}/{config.num_redundant_experts}/{config.eplb_step_interval}"
    others = f"{config.eplb_num_nodes}/{config.all2all_backend}/{config.min_expert_ranks}"
    return f"{PROTOCOL_VERSION}/{balance}/{others}"
