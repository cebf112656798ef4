"""The ranks of one model in the threads of one process: a real engine, real followers and real collectives."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.parallel.rank0_model import Follower
from baton.engine.parallel.tensor_parallel import TensorGroup
from tests.unit.engine.group_rig import Group, Member

TIMEOUT_S = 60.0
CPU = torch.device("cpu")

T = TypeVar("T")


class TensorRig:
    """An engine and its followers, each on its own thread, with one torch thread."""

    def __init__(
        self,
        model: Path,
        size: int,
        *,
        members: int | None = None,
        others: Path | None = None,
        has_whole_experts: bool = False,
        **options: object,
    ) -> None:
        """members: number of members that join (default: `size`); others: the followers' model (default: `model`).

        options: fields of the engines' config.
        """
        given: dict[str, object] = {"dtype": "float32", "kv_cache_memory_bytes": 1 << 21, "num_threads": 1}
        self.config = EngineConfig(model=str(model), **(given | options))  # type: ignore[arg-type]
        self._followers_config = replace(self.config, model=str(others or model))
        self.group = Group()
        self.names = [f"rank-{rank}" for rank in range(members or size)]
        self.tensors = [
            TensorGroup(Member(self.group, name), "127.0.0.1", CPU, size, has_whole_experts) for name in self.names
        ]
        self.group.set_members(*self.names)
        self._threads = ThreadPoolExecutor(len(self.names))
        self._followers: list[Future[Follower]] = [Future() for _ in self.names]
        self.ended = [self._threads.submit(self._follow, rank) for rank in range(1, len(self.names))]
        self._leader = ThreadPoolExecutor(1, initializer=partial(torch.set_num_threads, 1))
        self.made: Future[Engine] = self._leader.submit(lambda: Engine(self.config, tensor=self.tensors[0]))

    @property
    def engine(self) -> Engine:
        return self.made.result(TIMEOUT_S)

    def follower(self, rank: int) -> Follower:
        return self._followers[rank].result(TIMEOUT_S)

    def call(self, function: Callable[[Engine], T]) -> T:
        """Run a function on rank 0's thread."""
        return self._leader.submit(function, self.engine).result(TIMEOUT_S)

    def close(self) -> None:
        """End rank 0, and with it all followers."""
        self._leader.submit(self.tensors[0].close).result(TIMEOUT_S)
        self.group.set_members()  # ranks that still wait for others would never end
        for tensor in self.tensors:
            tensor.leave()
        self._leader.shutdown()
        self._threads.shutdown()

    def _follow(self, rank: int) -> None:
        follower = Follower(self._followers_config, self.tensors[rank])
        self._followers[rank].set_result(follower)
        follower.follow()


def on_all_ranks(size: int, function: Callable[[TensorGroup], T]) -> list[T]:
    """Run a function on every rank of a group and return the results."""
    group = Group()
    names = [f"rank-{rank}" for rank in range(size)]
    group.set_members(*names)

    def run(name: str) -> T:
        tensor = TensorGroup(Member(group, name), "127.0.0.1", CPU, size)
        tensor.form()
        try:
            result = function(tensor)
            tensor.barrier()
            return result
        finally:
            tensor.close()

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, names))
