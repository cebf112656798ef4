"""Two pools in virtual time, driven by `plan_pools` in a closed loop.

Prefill is an exact first-come, first-served queue with one server per replica. Decode is a fluid of sequences that all
advance by a second's steps. Replicas take time to start and to drain, and only as many start as there are real GPUs.
The GPUs in use are compared with the budget at every moment.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from baton.deployment.autoscaling.decision import Decision
from baton.deployment.autoscaling.plan import plan_pools
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import DecodeSnapshot, PoolsSnapshot, PrefillSnapshot, Traffic
from baton.deployment.autoscaling.state import ScalingState
from tests.unit.deployment.autoscaling_load import Load, Machine, SimulatedRequest
from tests.unit.deployment.autoscaling_pool import WINDOW_S, Pool, Replica, Window


@dataclass(frozen=True, slots=True)
class Planned:
    """One decision."""

    now_s: float
    decision: Decision
    gpus: int

    @property
    def sizes(self) -> tuple[int, int]:
        return self.decision.prefill.target, self.decision.decode.target


class Rig:
    """Both pools and their requests; `run` advances time."""

    def __init__(
        self,
        load: Load,
        settings: ScalingSettings,
        *,
        seed: int = 0,
        machine: Machine | None = None,
        sizes: tuple[int, int] = (1, 1),
        real_gpus: Callable[[float], int] = lambda _: 10**9,
    ) -> None:
        settings.check()
        self.load, self.settings = load, settings
        self.machine = machine or Machine()
        self.prefill = Pool(settings.prefill, self.machine, sizes[0])
        self.decode = Pool(settings.decode, self.machine, sizes[1])
        self.decisions: list[Planned] = []
        self.ttfts: list[tuple[float, float]] = []  # (arrival, TTFT)
        self.now_s = 0.0
        self._real_gpus = real_gpus
        self._random = np.random.default_rng(seed)
        self._state: ScalingState | None = None
        self._arrived = Window()  # prompt tokens
        self._ended = Window()  # output tokens
        self._queue: deque[SimulatedRequest] = deque()  # requests that wait for prefill
        self._computed: list[SimulatedRequest] = []  # computed prompts on their way to decode
        self._waiting: deque[SimulatedRequest] = deque()  # requests that wait for decode

    def run(self, until_s: float) -> None:
        """Plan once a second until then."""
        while self.now_s < until_s:
            self._add_arrivals()
            self._prefill_second()
            self._decode_second()
            self.now_s += 1.0
            self._start_and_stop_replicas()
            decision, self._state = plan_pools(self.snapshot(), self._state, self.settings)
            self.prefill.scale(decision.prefill.target, self.now_s)
            self.decode.scale(decision.decode.target, self.now_s)
            gpus = self.prefill.gpus + self.decode.gpus
            assert gpus <= self.settings.budget_gpus, f"{gpus} GPUs at {self.now_s}: {decision.reason}"
            self.decisions.append(Planned(self.now_s, decision, gpus))

    def snapshot(self) -> PoolsSnapshot:
        """Return the snapshot that routers and workers would report."""
        now_s, speed, quantile = self.now_s, self.machine.reported_speed, self.settings.slo.quantile
        for window in (self._arrived, self._ended):
            window.forget(now_s - WINDOW_S)
        prompts = self._arrived.moments
        running = [request for replica in self.decode.ready for request in replica.running]
        queued = sum(each.prompt_tokens for each in self._queue)
        return PoolsSnapshot(
            now_s=now_s,
            traffic=Traffic(
                window_s=WINDOW_S,
                requests_per_s=len(self._arrived) / WINDOW_S if now_s >= WINDOW_S else len(self._arrived) / now_s,
                prompt_tokens=prompts,
                uncached_tokens=prompts,
                output_tokens=self._ended.moments,
            ),
            prefill=PrefillSnapshot(
                pool=self.prefill.snapshot(now_s, quantile, self._oldest(each.arrived_s for each in self._queue)),
                tokens_per_s=self.machine.tokens_per_s * speed,
                step_s=self.machine.prefill_step_s / speed,
                max_step_tokens=2048,
                queued_tokens=queued,
            ),
            decode=DecodeSnapshot(
                pool=self.decode.snapshot(now_s, quantile, self._oldest(each.decode_from_s for each in self._waiting)),
                step_s=self.machine.decode_step_s / speed,
                sequence_s=self.machine.decode_sequence_s / speed,
                max_num_seqs=self.machine.max_num_seqs,
                kv_tokens=self.machine.kv_tokens,
                kv_used_tokens=int(sum(each.context for each in running)),
                num_running=len(running),
                num_waiting=len(self._waiting),
            ),
        )

    def ttft(self, from_s: float, until_s: float, quantile: float = 0.95) -> float:
        """Return the TTFT quantile of the requests that arrived in the period and got a first token."""
        return float(np.quantile([ttft for at_s, ttft in self.ttfts if from_s <= at_s < until_s], quantile))

    def _add_arrivals(self) -> None:
        num = int(self._random.poisson(self.load.requests_per_s(self.now_s)))
        for at_s in np.sort(self._random.uniform(self.now_s, self.now_s + 1, num)):
            prompt = 1 + self._random.exponential(self.load.prompt_tokens(self.now_s))
            output = 1 + self._random.exponential(self.load.output_tokens(self.now_s))
            request = SimulatedRequest(float(at_s), float(prompt), float(output), left=float(output))
            self._arrived.add(request.arrived_s, request.prompt_tokens)
            self._queue.append(request)

    def _prefill_second(self) -> None:
        end_s = self.now_s + 1
        servers = self.prefill.ready
        token_s = 1 / self.machine.tokens_per_s + self.machine.prefill_step_s / 2048
        while self._queue and servers:
            server = min(servers, key=lambda each: each.free_s)
            begin_s = max(server.free_s, self._queue[0].arrived_s, server.ready_s or 0.0)
            if begin_s >= end_s:
                break
            request = self._queue.popleft()
            work_s = self.machine.prefill_step_s + request.prompt_tokens * token_s
            server.free_s = begin_s + work_s * self.prefill.slowness(server, begin_s)
            request.decode_from_s = server.free_s
            ttft_s = server.free_s - request.arrived_s
            server.samples.append((server.free_s, ttft_s))
            self.ttfts.append((request.arrived_s, ttft_s))
            self._computed.append(request)

    def _decode_second(self) -> None:
        due = [request for request in self._computed if request.decode_from_s < self.now_s + 1]
        self._computed = [request for request in self._computed if request.decode_from_s >= self.now_s + 1]
        self._waiting.extend(due)
        servers = self.decode.ready
        while self._waiting and servers:
            server = min(servers, key=lambda each: len(each.running))
            held = sum(each.context for each in server.running)
            if len(server.running) >= self.machine.max_num_seqs or held > 0.95 * self.machine.kv_tokens:
                break
            request = self._waiting.popleft()
            request.joined_s = self.now_s if request.joined_s is None else request.joined_s
            server.running.append(request)
        for replica in self.decode.replicas:
            self._decode_replica(replica)

    def _decode_replica(self, replica: Replica) -> None:
        if not replica.running:
            return
        step_s = self.machine.decode_step_s + self.machine.decode_sequence_s * (len(replica.running) - 1)
        step_s *= self.decode.slowness(replica, self.now_s)
        for request in replica.running:
            request.left -= 1 / step_s
            if request.left <= 0:
                assert request.joined_s is not None
                end_s = self.now_s + 1 + request.left * step_s  # within this second
                self._ended.add(self.now_s, request.output_tokens)
                replica.samples.append((self.now_s, (end_s - request.joined_s) / request.output_tokens))
        replica.running = [request for request in replica.running if request.left > 0]

    def _start_and_stop_replicas(self) -> None:
        room = self._real_gpus(self.now_s) - self.prefill.gpus - self.decode.gpus
        room += sum(len(pool.starting) * pool.limits.gpus_per_replica for pool in (self.prefill, self.decode))
        for pool in (self.prefill, self.decode):
            for replica in pool.starting:
                if room >= pool.limits.gpus_per_replica and self.now_s - replica.wanted_s >= self.machine.start_s:
                    replica.ready_s = self.now_s
                if room >= pool.limits.gpus_per_replica:
                    room -= pool.limits.gpus_per_replica
            for replica in [each for each in pool.replicas if each.draining_s is not None]:
                self._drain(pool, replica)

    def _drain(self, pool: Pool, replica: Replica) -> None:
        assert replica.draining_s is not None
        is_over = self.now_s - replica.draining_s >= self.machine.drain_s
        if is_over or (not replica.running and replica.free_s <= self.now_s):
            self._waiting.extendleft(replica.running)  # they continue on other replicas
            pool.replicas.remove(replica)

    def _oldest(self, since_s: Iterable[float]) -> float:
        return max(0.0, self.now_s - min(since_s, default=self.now_s))
