"""A group of ranks in the threads of one process: real engines and real collectives, a membership in memory."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import EngineEnded, GroupBroken
from baton.engine.experts.group import BalanceSettings, ExpertGroup
from baton.engine.loop import EngineLoop
from baton.engine.outputs import SampledToken, StepOutput
from baton.engine.parallel.group_view import GroupView
from baton.engine.parallel.rank_group import RankGroup
from baton.engine.request import Request

TIMEOUT_S = 60.0
HOST = "127.0.0.1"
CPU = torch.device("cpu")

T = TypeVar("T")
OnJoin = Callable[[ExpertGroup], None]  # called when a loaded rank asks to join


class Group:
    """Members of the group; every change begins a new epoch."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.epoch = 0
        self.members: tuple[str, ...] = ()
        self.store = ""
        self.broken: list[tuple[int, str]] = []
        self.wakes: list[tuple[str, int, int]] = []  # the rank that woke the others, the epoch and the round
        self.listeners: dict[str, Callable[[int, int], object]] = {}  # receive wakes, and new epochs as round 0

    def set_members(self, *members: str) -> None:
        with self.changed:
            self.epoch, self.members, self.store = self.epoch + 1, members, ""
            self.changed.notify_all()
            for listener in list(self.listeners.values()):
                listener(self.epoch, 0)


class Member:
    """One rank's view of the group."""

    def __init__(self, group: Group, name: str) -> None:
        self._group = group
        self.name = name
        self.fingerprint = ""
        self.on_join: Callable[[], None] = lambda: None  # the tests set the members

    @property
    def epoch(self) -> int:
        return self._group.epoch if self.name in self._group.members else 0

    def wait(self, seen: GroupView | None, timeout_s: float) -> GroupView | None:
        with self._group.changed:
            self._group.changed.wait_for(lambda: self._view() not in (None, seen), timeout_s)
            view = self._view()
            return None if view == seen else view

    def _view(self) -> GroupView | None:
        group = self._group
        if self.name not in group.members:
            return None
        return GroupView(group.epoch, group.members, group.members.index(self.name), group.store)

    def join(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.on_join()

    def publish_store(self, epoch: int, address: str) -> None:
        with self._group.changed:
            if epoch == self._group.epoch:
                self._group.store = address
                self._group.changed.notify_all()

    def report_broken(self, epoch: int, reason: str) -> None:
        with self._group.changed:
            self._group.broken.append((epoch, reason))
            if epoch == self._group.epoch:
                self._group.set_members(*self._group.members)

    def wake(self, epoch: int, round_number: int) -> None:
        self._group.wakes.append((self.name, epoch, round_number))
        for name, listener in list(self._group.listeners.items()):
            if name != self.name:
                listener(epoch, round_number)


class Rank:
    """One rank: an engine created and stepped on its own threads."""

    def __init__(
        self,
        group: Group,
        name: str,
        config: EngineConfig,
        balance: BalanceSettings | None,
        fewest: int = 1,
        on_join: OnJoin = lambda _: None,
    ) -> None:
        self._balance = balance
        self._fewest = fewest
        self._on_join = on_join
        self._group = group
        self._name = name
        self._config = config
        self.outputs: dict[str, list[SampledToken]] = {}
        self.unfinished: set[str] = set()
        self.num_steps = 0
        self.failure: BaseException | None = None
        self.changed = threading.Condition()
        maker = ThreadPoolExecutor(1)
        self._making = maker.submit(self._make)
        maker.shutdown(wait=False)

    def _make(self) -> Engine:
        member = Member(self._group, self._name)
        group = ExpertGroup(member, HOST, CPU, self._balance, fewest_ranks=self._fewest)
        member.on_join = lambda: self._on_join(group)
        return Engine(self._config, group=group)

    def start(self) -> None:
        """Start to step once the engine is created, and receive wakes and new epochs."""
        self.engine = self._making.result(TIMEOUT_S)
        self._loop = EngineLoop(self.engine, self._take, self._fail)
        self._group.listeners[self._name] = lambda epoch, number: self._loop.call(
            lambda engine: engine.woken(epoch, number)
        )
        self._loop.start()

    @property
    def experts(self) -> ExpertGroup:
        """The rank's view of the expert group."""
        assert self.engine.group is not None
        return self.engine.group

    @property
    def turn_s(self) -> float:
        """Duration of the current turn in seconds, as `EngineLoop.turn_s` reports it."""
        return self._loop.turn_s

    def call(self, function: Callable[[Engine], T]) -> "Future[T]":
        """Run a function on the engine's thread, between two steps."""
        return self._loop.call(function)

    def add(self, *requests: Request) -> None:
        """Queue all requests between the same two steps."""
        with self.changed:
            self.unfinished |= {request.request_id for request in requests}
            self.outputs |= {request.request_id: [] for request in requests}

        def add_all(engine: Engine) -> None:
            for request in requests:
                engine.add(request)

        self._loop.call(add_all).result(TIMEOUT_S)

    def wait(self, ready: Callable[["Rank"], bool]) -> None:
        """Wait until `ready` returns True; raise the error that the engine failed with."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.failure is not None or ready(self), TIMEOUT_S)
        if self.failure is not None:
            raise self.failure

    def wait_for_all(self) -> None:
        """Wait until every request has ended."""
        self.wait(lambda rank: not rank.unfinished)

    def die(self) -> None:
        """End between two steps without leaving, as a killed process does: collectives of other ranks break."""
        del self._group.listeners[self._name]

        def fail(engine: Engine) -> None:
            raise SystemExit

        self._loop.call(fail)

    def leave(self) -> None:
        """Leave the group; the membership is updated afterwards."""
        self._group.listeners.pop(self._name, None)
        assert self.engine.lockstep is not None
        self.engine.lockstep.leave()

    def stop(self) -> None:
        self._loop.stop()
        self.engine.check_integrity()

    def _take(self, step: StepOutput) -> None:
        with self.changed:
            self.num_steps += 1
            for each in step.outputs:
                self.outputs[each.request_id] += each.all_sampled
                if each.finish_reason is not None:
                    self.unfinished.discard(each.request_id)
            self.changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self.changed:
            self.failure = error
            self.changed.notify_all()


class Ranks:
    """The ranks of one group in this process."""

    def __init__(
        self,
        model: Path,
        names: Sequence[str],
        balance: BalanceSettings | None = None,
        models: Mapping[str, Path] | None = None,
        fewest: int = 1,
        **config: object,
    ) -> None:
        """models: folders of ranks with their own files, as on other hosts; fewest: minimum ranks of an epoch."""
        self.group = Group()
        self._models = models or {}
        self._balance = balance
        self._fewest = fewest
        self._config = EngineConfig(
            model=str(model),
            num_threads=1,
            kv_cache_memory_bytes=1 << 21,
            **config,  # type: ignore[arg-type]
        )
        self.ranks: dict[str, Rank] = {}
        self.join(*names)

    def __getitem__(self, name: str) -> Rank:
        return self.ranks[name]

    def join(self, *names: str, on_join: OnJoin = lambda _: None) -> None:
        """Add ranks while others step."""
        new = {
            name: Rank(self.group, name, self._config_of(name), self._balance, self._fewest, on_join) for name in names
        }
        self.group.set_members(*self.ranks, *names)
        for rank in new.values():
            rank.start()
        self.ranks |= new

    def _config_of(self, name: str) -> EngineConfig:
        return replace(self._config, model=str(self._models.get(name, self._config.model)))

    def lose(self, name: str) -> None:
        """Let a rank die."""
        self.ranks.pop(name).die()
        self.group.set_members(*self.ranks)

    def wait_for_all(self) -> dict[str, list[SampledToken]]:
        """Return the results of all requests once all have ended."""
        for rank in self.ranks.values():
            rank.wait_for_all()
        return {request_id: tokens for rank in self.ranks.values() for request_id, tokens in rank.outputs.items()}

    def close(self) -> None:
        """Let one rank after the other leave, as drained workers do."""
        for name in list(self.ranks):
            self.leave(name)

    def leave(self, name: str) -> None:
        """Let a rank leave in good order."""
        rank = self.ranks.pop(name)
        rank.leave()
        self.group.set_members(*self.ranks)
        rank.stop()


def on_ranks(size: int, function: Callable[[RankGroup], T]) -> list[T]:
    """Run a function on every rank of a group without engines and return the results."""
    group = Group()
    names = [f"rank-{rank}" for rank in range(size)]
    group.set_members(*names)

    all_ranks = [RankGroup(Member(group, name), HOST, CPU) for name in names]

    def run(ranks: RankGroup) -> T:
        try:
            ranks.form()
            result = function(ranks)
            ranks.barrier()  # a rank that ends earlier may break collectives that others still wait for
            return result
        except (GroupBroken, EngineEnded):
            raise
        except BaseException:
            for each in all_ranks:
                each.leave()  # a rank that is still forming would wait forever
            group.set_members()
            raise
        finally:
            ranks.close()

    with ThreadPoolExecutor(size) as threads:
        made = [threads.submit(run, ranks) for ranks in all_ranks]
    failures = [each.exception() for each in made]
    for error in failures:
        if error is not None and not isinstance(error, (GroupBroken, EngineEnded)):  # caused by another rank's error
            raise error
    return [each.result() for each in made]
