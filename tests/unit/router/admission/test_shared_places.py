"""The places of completions in flight that several models share."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from baton.router.admission.admission import Admission
from baton.router.admission.inflight_limit import AdmissionLimits
from baton.router.admission.metrics import AdmissionMetrics
from baton.router.admission.shared_places import SharedPlaces, reserved_places
from baton.router.config import RouterConfig
from baton.router.metrics.traffic import Arrivals
from baton.router.request_context import RequestContext
from baton.router.served_model import ServedModel
from baton.router.served_models import ServedModels
from baton.settings.values import OptionError
from tests.unit.router.rigs.admission_rig import Workers, settle


class Models:
    """Admissions of several models, which share places, and the requests in flight."""

    def __init__(self, max_inflight: int, num_models: int) -> None:
        places = SharedPlaces(max_inflight, num_models)
        most = max_inflight - (num_models - 1) * reserved_places(max_inflight, num_models)
        self.admissions = [
            Admission(
                AdmissionLimits(max_inflight=most, max_queue=100),
                Workers(100),
                AdmissionMetrics(CollectorRegistry(), str(number)),
                Arrivals(60),
                places=places,
            )
            for number in range(num_models)
        ]
        self._ends: list[list[asyncio.Event]] = [[] for _ in range(num_models)]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def inflight(self) -> list[int]:
        return [each.num_inflight for each in self.admissions]

    @property
    def waiting(self) -> list[int]:
        return [each.num_waiting for each in self.admissions]

    async def send(self, model: int, count: int, num_completions: int = 1) -> None:
        """Send requests to a model."""
        for _ in range(count):
            self._tasks.append(asyncio.create_task(self._request(model, num_completions)))
        await settle()

    async def end(self, model: int, count: int) -> None:
        """End the oldest requests of a model."""
        for _ in range(count):
            self._ends[model].pop(0).set()
        await settle()

    async def end_all(self) -> None:
        while any(self._ends):
            for model, ends in enumerate(self._ends):
                await self.end(model, len(ends))
        await asyncio.gather(*self._tasks)

    async def _request(self, model: int, num_completions: int) -> None:
        async with self.admissions[model].admit(num_completions, RequestContext()):
            end = asyncio.Event()
            self._ends[model].append(end)
            await end.wait()


def test_half_of_the_places_are_reserved() -> None:
    assert [reserved_places(8192, num_models) for num_models in (1, 2, 4)] == [8192, 2048, 1024]


async def test_a_busy_model_leaves_the_places_that_are_reserved_for_others() -> None:
    models = Models(max_inflight=8, num_models=2)
    await models.send(0, 10)
    assert (models.inflight, models.waiting) == ([6, 0], [4, 0])
    await models.send(1, 3)
    assert (models.inflight, models.waiting) == ([6, 2], [4, 1])  # at once; one waits as all places are taken
    await models.end_all()
    assert models.inflight == [0, 0]


async def test_two_busy_models_leave_the_places_of_a_third() -> None:
    models = Models(max_inflight=12, num_models=3)
    await models.send(0, 20)
    await models.send(1, 20)
    assert models.inflight == [8, 2, 0]
    await models.send(2, 2)
    assert models.inflight == [8, 2, 2]
    await models.end(2, 2)
    await models.end(0, 1)
    assert models.inflight == [7, 3, 0]
    await models.end_all()


async def test_a_free_place_goes_to_the_model_with_the_fewest_in_flight() -> None:
    models = Models(max_inflight=8, num_models=2)
    await models.send(0, 10)
    await models.send(1, 6)
    for others in (3, 4, 4):  # both wait; they take turns once they have as many
        await models.end(0, 1)
        assert models.inflight[1] == others
        assert sum(models.inflight) == 8
    await models.end_all()


async def test_the_sum_never_exceeds_the_bound_and_each_request_finds_room() -> None:
    models = Models(max_inflight=12, num_models=3)
    for model in range(3):
        await models.send(model, 9)
        await models.send(model, 2, num_completions=2)  # as many as are reserved
        assert sum(models.inflight) <= 12
    for _ in range(40):
        for model in range(3):
            if models.inflight[model]:
                await models.end(model, 1)
            assert sum(models.inflight) <= 12
    assert models.waiting == [0, 0, 0]
    await models.end_all()


async def test_one_model_has_all_places() -> None:
    models = Models(max_inflight=4, num_models=1)
    await models.send(0, 5)
    assert (models.inflight, models.waiting) == ([4], [1])
    await models.end_all()


async def test_a_drain_waits_for_a_model_that_got_a_request_while_another_ended() -> None:
    models = Models(max_inflight=8, num_models=2)
    served = ServedModels(
        [cast(ServedModel, SimpleNamespace(name=str(each), admission=each)) for each in models.admissions]
    )
    await models.send(0, 1)
    waiting = asyncio.create_task(served.wait_idle(10))
    await settle()
    await models.send(1, 1)
    await models.end(0, 1)
    assert not waiting.done()
    assert not await served.wait_idle(0.01)
    await models.end_all()
    assert await waiting


def test_the_options_bound_a_request_and_a_model() -> None:
    one = RouterConfig(model="/a", max_inflight=16)
    assert (one.max_model_inflight, one.max_completions) == (16, 16)
    two = RouterConfig(model="/a", also_serve=("/b",), max_inflight=16)
    assert (two.max_model_inflight, two.max_completions) == (12, 4)
    with pytest.raises(OptionError, match="max_inflight: must be at least 4 with 2 models"):
        RouterConfig(model="/a", also_serve=("/b",), max_inflight=3)
