"""Warnings of processes reach the listener."""

import json
from pathlib import Path

from baton.deployment.local.events import Event, Warned
from baton.deployment.local.warning_relay import MAX_WARNINGS, WarningRelay

TIME = "2030-01-02T03:04:05.678Z"


def record(level: str, message: str, logger: str = "baton.engine.kv.capacity") -> str:
    return f"{TIME} {level:<7} decode-0 {logger}: {message}\n"


def relay(path: Path) -> tuple[WarningRelay, list[Event]]:
    events: list[Event] = []
    return WarningRelay([("decode-0", path)], events.append), events


def test_only_warnings_and_errors_are_relayed(tmp_path: Path) -> None:
    path = tmp_path / "decode-0.log"
    path.write_text(record("WARNING", "of the life before"))
    relayed, events = relay(path)
    with path.open("a") as log:
        log.write(record("INFO", "serves at 127.0.0.1:1"))
        log.write(record("WARNING", "attention was not compiled"))
        log.write("Traceback (most recent call last):\n")
        log.write(record("ERROR", "the engine failed"))
        log.write(record("ERROR", "cannot go on: OSError", logger="baton.process.entry"))  # reported by its death
        log.write(record("WARNING", "x.py:1: DeprecationWarning: y", logger="py.warnings"))
    relayed.poll()
    relayed.poll()
    assert events == [Warned("decode-0", "attention was not compiled"), Warned("decode-0", "the engine failed")]


def test_a_line_is_relayed_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "decode-0.log"
    relayed, events = relay(path)
    relayed.poll()  # the file does not exist yet
    line = record("WARNING", "slow transport")
    path.write_text(line[:-5])
    relayed.poll()
    assert events == []
    path.write_text(line)
    relayed.poll()
    assert events == [Warned("decode-0", "slow transport")]


def test_a_truncated_log_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "decode-0.log"
    relayed, events = relay(path)
    path.write_text(record("INFO", "x" * 1000))
    relayed.poll()
    path.write_text(record("WARNING", "slow transport"))
    relayed.poll()
    assert events == [Warned("decode-0", "slow transport")]


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "decode-0.log"
    relayed, events = relay(path)
    path.write_bytes(record("WARNING", "request \x1b]0;title\x07\x1b[2J failed").encode() + b"\xff\x00\n")
    relayed.poll()
    assert events == [Warned("decode-0", "request ?]0;title??[2J failed")]


def test_similar_warnings_are_relayed_once_and_their_total_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "decode-0.log"
    relayed, events = relay(path)
    path.write_text("".join(record("WARNING", f"request {number:032x} took {number} ms") for number in range(50)))
    relayed.poll()
    assert len(events) == 1
    letters = ("".join(chr(ord("g") + int(digit)) for digit in str(number)) for number in range(100))
    with path.open("a") as log:
        log.writelines(record("WARNING", f"another kind: {each}") for each in letters)
    relayed.poll()
    assert len(events) == MAX_WARNINGS + 1
    assert events[-1] == Warned("decode-0", "further warnings are only in the logs")


def test_warnings_in_json_are_relayed_with_the_request(tmp_path: Path) -> None:
    path, seen = tmp_path / "decode-0.log", list[Event]()
    relay = WarningRelay([("decode-0", path)], seen.append)
    fields = {"time": TIME, "process": "decode-0", "logger": "baton.x", "exception": "Traceback"}
    path.write_text(
        json.dumps({**fields, "level": "WARNING", "request_id": "r1", "message": "slow"})
        + "\n"
        + json.dumps({**fields, "level": "INFO", "message": "fast"})
        + "\n"
    )
    relay.poll()
    assert seen == [Warned("decode-0", "[r1] slow")]
