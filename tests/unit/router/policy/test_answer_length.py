"""The expected length of outputs."""

import pytest

from baton.router.policy.estimates import LENGTH_FIRST_GUESS, OutputLength
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker


def test_it_starts_as_a_guess_and_follows_recent_outputs() -> None:
    length = OutputLength()
    assert length.mean == LENGTH_FIRST_GUESS
    for _ in range(1000):
        length.note(40)
    assert length.mean == pytest.approx(40, rel=1e-3)
    for number in range(1000):
        length.note(20 if number % 2 else 60)
    assert length.mean == pytest.approx(40, rel=0.02)


def test_typical_lengths_show_the_spread_of_outputs() -> None:
    length = OutputLength()
    assert set(length.typical) == {LENGTH_FIRST_GUESS}
    for number in range(200):
        length.note(8 if number % 2 else 192)
    assert length.typical == (8.0, 8.0, 192.0, 192.0)
    for _ in range(200):
        length.note(0)
    assert length.typical == (1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("stream", [False, True])
async def test_every_output_updates_the_expected_length(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[int] = []
    note = OutputLength.note
    monkeypatch.setattr(OutputLength, "note", lambda self, count: (noted.append(count), note(self, count)))
    async with running_router(ScriptedWorker()) as router:
        for max_tokens in (5, 7):
            body = {"prompt": "Hello there", "max_tokens": max_tokens, "stream": stream}
            assert (await router.http.post("/v1/completions", json=body)).status_code == 200
    assert noted == [5, 7]


def test_empty_outputs_count_as_one_token() -> None:
    length = OutputLength()
    for _ in range(2000):
        length.note(0)
    assert length.mean == 1.0
