"""Encoding of routers' reports, and the bounds of each field."""

import json
from dataclasses import asdict
from typing import Any

import orjson
import pytest

from baton.membership.registry.router_report import (
    LEAST_S,
    MAX_BLOCK_SIZE,
    MAX_COUNT,
    MAX_LENGTH,
    MAX_MEASURED,
    MAX_MODEL_CHARS,
    MAX_S,
    MAX_SAMPLES,
    MAX_SUM,
    MAX_TOKENS,
    MAX_WINDOW_S,
    MIN_RATE,
    MIN_STEP_S,
    MIN_WINDOW_S,
    MOST_S,
    SampleSums,
    bin_of,
    decode_report,
    encode_report,
    known,
)
from baton.settings.names import MAX_NAME_CHARS
from tests.unit.membership.registry.router_reports import router_report, worker_report


def test_a_report_round_trips() -> None:
    prefill = worker_report("prefill-0", "prefill", draining=True, latency={-30: 2, 0: 1, 5: 7})
    report = router_report(prefill, worker_report())
    assert decode_report(encode_report(report)) == report


def test_fields_of_a_later_version_are_ignored() -> None:
    values = orjson.loads(encode_report(router_report(worker_report())))
    values["weather"] = "fine"
    values["workers"][0]["colour"] = {"name": "red"}
    assert decode_report(orjson.dumps(values).decode()) == router_report(worker_report())


@pytest.mark.parametrize("change", [{"workers": 5}, {"router_id": None}, {"time_s": "soon"}, {"traffic": {}}])
def test_an_invalid_report_is_refused(change: dict[str, object]) -> None:
    values = {**orjson.loads(encode_report(router_report())), **change}
    with pytest.raises(ValueError, match=f"is no report: {next(iter(change))}"):
        decode_report(orjson.dumps(values).decode())
    for text in ("", "[]", "{", "null"):
        with pytest.raises(ValueError, match="is no report"):
            decode_report(text)


def test_sums_add_up() -> None:
    assert sum([SampleSums(1, 2.0, 4.0), SampleSums(2, 3.0, 5.0)], SampleSums()) == SampleSums(3, 5.0, 9.0)


Path = tuple[str | int, ...]

COUNTS: dict[Path, int] = {
    ("traffic", "num_requests"): MAX_SAMPLES,
    ("traffic", "num_generated_tokens"): MAX_TOKENS,
    ("traffic", "num_waiting"): MAX_COUNT,
    ("traffic", "gaps_s", "num"): MAX_SAMPLES,
    ("workers", 0, "num_running"): MAX_COUNT,
    ("workers", 0, "num_waiting"): MAX_COUNT,
    ("workers", 0, "num_queued_tokens"): MAX_TOKENS,
    ("workers", 0, "num_blocks"): MAX_COUNT,
    ("workers", 0, "num_free_blocks"): MAX_COUNT,
    ("workers", 0, "block_size"): MAX_BLOCK_SIZE,
    ("workers", 0, "max_num_seqs"): MAX_COUNT,
    ("workers", 0, "max_num_batched_tokens"): MAX_TOKENS,
    ("workers", 0, "latency", "0"): MAX_SAMPLES,
}
AMOUNTS: dict[Path, tuple[float, float]] = {  # least and most
    ("time_s",): (0.0, MAX_S),
    ("traffic", "window_s"): (MIN_WINDOW_S, MAX_WINDOW_S),
    ("traffic", "oldest_wait_s"): (0.0, MAX_S),
    ("traffic", "gaps_s", "total"): (0.0, MAX_SUM),
    ("traffic", "gaps_s", "squares"): (0.0, MAX_SUM),
    ("workers", 0, "ready_for_s"): (0.0, MAX_S),
    ("workers", 0, "prefill_tokens_per_s"): (MIN_RATE, MAX_MEASURED),
    ("workers", 0, "decode_step_s"): (MIN_STEP_S, MAX_MEASURED),
    ("workers", 0, "decode_sequence_s"): (MIN_STEP_S, MAX_MEASURED),
}
LENGTHS = ("prompt_tokens", "uncached_tokens", "remote_tokens", "output_tokens", "asked_tokens")
NO_NUMBERS = [float("nan"), float("inf"), -float("inf"), -1, True, False, "1", None, [], 10**400]


def changed(path: Path, value: object) -> str:
    """Return the JSON of a valid report with one other value. NaN and infinities are written as JavaScript does."""
    values = orjson.loads(encode_report(router_report(worker_report(latency={0: 1}))))
    target: Any = values
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return json.dumps(values)


def assert_refused(path: Path, value: object) -> None:
    where = r"\.".join(map(str, path))
    with pytest.raises(ValueError, match=f"is no report: {where}"):
        decode_report(changed(path, value))


@pytest.mark.parametrize("path", COUNTS, ids=lambda path: ".".join(map(str, path)))
def test_counts_have_bounds(path: Path) -> None:
    for valid in (0, COUNTS[path]):
        decode_report(changed(path, valid))
    for invalid in (COUNTS[path] + 1, 0.5, *NO_NUMBERS):
        if invalid is not None or path[-1] != "num_generated_tokens":
            assert_refused(path, invalid)


@pytest.mark.parametrize("path", AMOUNTS, ids=lambda path: ".".join(map(str, path)))
def test_rates_times_and_sums_have_bounds(path: Path) -> None:
    least, most = AMOUNTS[path]
    for valid in (least, most):
        decode_report(changed(path, valid))
    for invalid in (1.01 * most, *([0.99 * least, 1e-310] if least else []), *NO_NUMBERS):
        assert_refused(path, invalid)


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_are_whole_numbers_with_bounds(name: str) -> None:
    for valid in (
        SampleSums(),
        SampleSums(9),
        SampleSums(9, 1.0, 1.0),
        SampleSums(1, float(MAX_LENGTH), float(MAX_LENGTH**2)),
    ):
        decode_report(changed(("traffic", name), asdict(valid)))
    for num, total, squares in (
        (0, 1.0, 1.0),
        (9, 0.5, 0.5),
        (9, 1e-300, 1e-300),
        (9, 9.5 * MAX_LENGTH, 1e20),
        (9, 9.0, 8.0),
        (9, 9.0, 10.0 * MAX_LENGTH),
        (9, 0.0, 1.0),
        (9, float("nan"), 1.0),
        (9, 9.0, float("inf")),
        (9, 9.0, -9.0),
        (9, True, 9.0),
        (-1, 0.0, 0.0),
        (MAX_SAMPLES + 1, 9.0, 9.0),
        (True, 9.0, 9.0),
    ):
        assert_refused(("traffic", name), {"num": num, "total": total, "squares": squares})


@pytest.mark.parametrize("number", [bin_of(LEAST_S) - 1, bin_of(MOST_S) + 1, 10**9, -(10**9), 10**400, "x", 0.5, "nan"])
def test_latencies_have_only_the_bins_of_possible_times(number: object) -> None:
    assert_refused(("workers", 0, "latency"), {str(number): 1})


def test_the_first_and_the_last_bin_are_valid() -> None:
    report = router_report(worker_report(latency={bin_of(0): 1, bin_of(1e300): 1}))
    assert decode_report(encode_report(report)) == report


@pytest.mark.parametrize(
    ("path", "most"),
    [
        (("router_id",), MAX_NAME_CHARS),
        (("model",), MAX_MODEL_CHARS),
        (("workers", 0, "worker_id"), MAX_NAME_CHARS),
        (("workers", 0, "incarnation"), MAX_NAME_CHARS),
    ],
)
def test_texts_have_bounds(path: Path, most: int) -> None:
    decode_report(changed(path, "x" * most))
    for invalid in ("x" * (most + 1), 5, True, None):
        assert_refused(path, invalid)


@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_a_flag_is_a_boolean(value: object) -> None:
    assert_refused(("workers", 0, "draining"), value)


def test_an_error_is_short_whatever_the_report_has() -> None:
    for text in ("x" * 10_000, changed(("workers", 0, "latency"), {"x" * 100_000: 1})):
        with pytest.raises(ValueError, match="is no report") as caught:
            decode_report(text)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0, 1e-310, 3e38])
def test_an_implausible_measurement_is_unknown(value: float) -> None:
    assert known(value, MIN_STEP_S) == 0.0
    assert known(MIN_STEP_S, MIN_STEP_S) == MIN_STEP_S
    assert known(MAX_MEASURED, MIN_RATE) == MAX_MEASURED
