"""Limits on unread output, and merging of deltas that wait."""

import random
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from baton.router.admission.unread_output import UnreadLimits, UnreadMetrics, UnreadOutput, UnreadShare
from baton.router.generation import CompletionDelta, MergedDeltas


class Rig:
    """Unread output with its series, and the requests that it aborted."""

    def __init__(self, request: int = 1000, key: int = 1000, router: int = 1000) -> None:
        self.registry = CollectorRegistry()
        limits = UnreadLimits(request_bytes=request, key_bytes=key, router_bytes=router)
        self.output = UnreadOutput(limits, UnreadMetrics(self.registry, "model"))
        self.ended: list[str] = []

    def begin(self, name: str, key: str | None = None) -> UnreadShare:
        return self.output.begin(name, key, self._note(name))

    def num_ended(self, reason: str) -> float:
        labels = {"model_name": "model", "reason": reason}
        value = self.registry.get_sample_value("baton:router_slow_clients_total", labels)
        assert value is not None
        return value

    def _note(self, name: str) -> Callable[[], None]:
        return lambda: self.ended.append(name)


async def test_a_request_over_its_bound_ends() -> None:
    rig = Rig(request=10)
    share = rig.begin("a")
    share.update(500, 10)  # what is being delivered does not count for the request's own bound
    assert rig.ended == []
    share.update(0, 11)
    assert rig.ended == ["a"]
    assert rig.num_ended("request") == 1
    share.update(0, 99)  # it may still report a little
    assert rig.output.num_bytes == 0


async def test_the_request_of_a_key_with_most_unread_output_is_aborted() -> None:
    rig = Rig(key=100)
    shares = {name: rig.begin(name, key) for name, key in (("a", "x"), ("b", "x"), ("c", "y"), ("d", None))}
    for name, num_bytes in (("d", 300), ("c", 90), ("a", 70), ("b", 40)):
        shares[name].update(num_bytes, 0)
    assert rig.ended == ["a"]
    assert rig.num_ended("key") == 1
    assert rig.output.num_bytes == 430


async def test_over_the_routers_limit_the_key_with_most_is_aborted() -> None:
    rig = Rig(router=100)
    shares = {name: rig.begin(name, key) for name, key in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "y"))}
    for name, num_bytes in (("c", 40), ("a", 30), ("b", 25), ("d", 6)):
        shares[name].update(num_bytes, 0)
    assert rig.ended == ["a"]
    assert rig.num_ended("router") == 1


async def test_closed_shares_count_nothing() -> None:
    rig = Rig()
    share = rig.begin("a", "x")
    assert not await rig.output.wait_delivered(0.001)
    share.update(10, 20)
    share.close()
    share.close()
    assert rig.output.num_bytes == 0
    assert await rig.output.wait_delivered(0.001)


@pytest.mark.parametrize("seed", range(20))
async def test_counts_stay_exact_whatever_happens(seed: int) -> None:
    draw = random.Random(seed)
    rig = Rig(request=200, key=300, router=500)
    shares: dict[str, UnreadShare] = {}
    for number in range(300):
        if draw.random() < 0.3:
            shares[f"{number}"] = rig.begin(f"{number}", draw.choice([None, "x", "y"]))
        for name in draw.sample(sorted(shares), min(2, len(shares))):
            if draw.random() < 0.2:
                shares.pop(name).close()
            else:
                shares[name].update(draw.randrange(150), draw.randrange(220))
        for name in rig.ended:
            shares.pop(name, None)
        live = shares.values()
        assert rig.output.num_bytes == sum(each.num_bytes for each in live) <= 500
        assert all(each.num_waiting <= 200 for each in live)
        for key in ("x", "y"):
            assert sum(each.num_bytes for each in live if each.key == key) <= 300
    for share in shares.values():
        share.close()
    assert rig.output.num_bytes == 0
    assert await rig.output.wait_delivered(0.001)


@pytest.mark.parametrize("seed", range(20))
def test_merged_deltas_are_the_deltas(seed: int) -> None:
    draw = random.Random(seed)
    merged, expected, taken = MergedDeltas(), dict[int, CompletionDelta](), dict[int, CompletionDelta]()
    for number in range(100):
        made = [
            CompletionDelta(number % 7, text=f"{number}", token_ids=[number], text_offsets=[number]) for _ in range(2)
        ]
        if draw.random() < 0.1:
            for delta in made:
                delta.finish_reason = "stop"
        expected.setdefault(number % 7, CompletionDelta(number % 7)).extend(made[0])
        merged.add(made[1])
        assert merged.num_bytes > 0
        if draw.random() < 0.2:
            for delta in merged.take():
                taken.setdefault(delta.index, CompletionDelta(delta.index)).extend(delta)
            assert merged.num_bytes == 0
    for delta in merged.take():
        taken.setdefault(delta.index, CompletionDelta(delta.index)).extend(delta)
    assert taken == expected
