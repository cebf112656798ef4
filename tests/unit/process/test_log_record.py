"""Records of Ray Serve, whose fields have other names."""

import json

import pytest

from baton.process.log_record import LogFilter, read_record

WRITTEN = {
    "asctime": "2026-01-31 13:00:00,250",  # in the machine's time zone
    "levelname": "ERROR",
    "message": "the replica's process has ended: status 1",
    "filename": "replica.py",
    "lineno": 58,
    "process": 4711,
    "worker_id": "01ab",
    "actor_id": "23cd",
    "timestamp_ns": 1769860800250123456,
}
REPLICA = {"component_name": "Replica", "application": "baton", "deployment": "decode", "replica": "x1y2z3"}


def test_a_replica_has_the_name_of_its_worker() -> None:
    record = read_record(json.dumps(WRITTEN | REPLICA | {"request_id": "r1", "exc_text": "Traceback\nValueError: no"}))
    assert record is not None
    assert record.line == (
        "2026-01-31T12:00:00.250Z ERROR   decode-x1y2z3 ray.serve: [r1] the replica's process has ended: status 1\n"
        "Traceback\nValueError: no"
    )
    assert LogFilter("WARNING", pools=frozenset({"decode"}), since="2026-01-31T12:00:00.000Z").accepts(record)


def test_other_parts_of_serve_have_their_own_names() -> None:
    record = read_record(json.dumps(WRITTEN | {"component_name": "controller", "component_id": "77"}))
    assert record is not None
    assert (record.process, record.request_id) == ("controller-77", "")


@pytest.mark.parametrize(
    "fields",
    [
        {"timestamp_ns": 1},
        WRITTEN,
        WRITTEN | REPLICA | {"timestamp_ns": "now"},
        WRITTEN | REPLICA | {"timestamp_ns": 1 << 99},
        WRITTEN | REPLICA | {"timestamp_ns": 10**400},
    ],
)
def test_records_of_other_programs_have_no_head(fields: dict[str, object]) -> None:
    assert read_record(json.dumps(fields)) is None
