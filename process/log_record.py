"""One record of a log: text or JSON of Baton, or JSON of Ray Serve; conditions on records."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
HEAD = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (?P<level>[A-Z]+) +(?P<process>\S+) (?P<logger>\S+): "
    r"(?:\[(?P<request_id>\S+)\] )?(?P<text>.*)",
    re.DOTALL,
)
DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
JSON_FIELDS = ("time", "level", "process", "logger", "request_id", "message", "exception", "stack")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SERVE_LOGGER = "ray.serve"  # the logger of all records that Serve writes to its files


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of a process: a line with a head or of JSON, and the lines without either that follow it."""

    time: str  # UTC, such as 2026-01-01T12:00:00.000Z; empty: the line has no head
    level: str
    process: str
    logger: str
    request_id: str  # empty: of no request
    text: str
    line: str  # the record as text; its lines as written, unless they were JSON


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Conditions on records; each that is empty holds for all."""

    level: str = "DEBUG"
    workers: frozenset[str] = frozenset()
    pools: frozenset[str] = frozenset()  # beginnings of the names of processes, in front of a dash
    request_id: str = ""  # or a part of it
    since: str = ""  # in the form of `LogRecord.time`

    def accepts(self, record: LogRecord) -> bool:
        """Return whether a record meets all conditions."""
        return (
            LEVELS.get(record.level, LEVELS["INFO"]) >= LEVELS[self.level]
            and (not self.workers or record.process in self.workers)
            and (not self.pools or record.process.partition("-")[0] in self.pools)
            and self.request_id in record.line
            and record.time >= self.since
        )


def read_record(line: str) -> LogRecord | None:
    """Return the record of one line, of text or JSON; None for a line without a head."""
    if line.startswith("{"):
        return _json_record(line)
    match = HEAD.fullmatch(line)
    return (
        None
        if match is None
        else LogRecord(**{key: value or "" for key, value in match.groupdict().items()}, line=line)
    )


def _json_record(line: str) -> LogRecord | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):  # of another program, or cut off
        return None
    if "timestamp_ns" in fields:
        fields = _of_serve(fields)
    if not isinstance(fields.get("time"), str) or not isinstance(fields.get("process"), str):
        return None
    texts = (_printable(str(fields.get(name, ""))) for name in JSON_FIELDS)
    time, level, process, logger, request_id, message, *behind = texts
    text = "\n".join([message, *filter(None, behind)])
    named = f"[{request_id}] " if request_id else ""
    shown = f"{time} {level:<7} {process} {logger}: {named}{text}"
    return LogRecord(time, level, process, logger, request_id, text, shown)


def _of_serve(fields: Mapping[str, object]) -> dict[str, object]:
    """Return Baton's fields of a record that Ray Serve has written; empty for another program's record.

    A replica's process has the name of its worker or router (`deployment/ray/replica.py`). Serve's `asctime` is in the
    local time of its machine, `timestamp_ns` counts from 1970.
    """
    names = ("deployment", "replica") if "replica" in fields else ("component_name", "component_id")
    written_ns = fields["timestamp_ns"]
    if not isinstance(written_ns, int) or any(name not in fields for name in names):
        return {}
    try:
        time = _time_text(datetime.fromtimestamp(written_ns / 1e9, UTC))
    except (OverflowError, ValueError, OSError):
        return {}
    about: dict[str, object] = {
        "time": time,
        "level": fields.get("levelname", ""),
        "process": "-".join(str(fields[name]) for name in names),
        "logger": SERVE_LOGGER,
        "exception": fields.get("exc_text", ""),
    }
    return about | {name: fields.get(name, "") for name in ("message", "request_id")}


def _printable(text: str) -> str:
    """Return a text with halves of characters, which JSON can escape and UTF-8 cannot encode, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def since_time(text: str, now: datetime) -> str:
    """Return the time of records that a text means: a duration before `now`, or a date with or without a time.

    Raises ValueError for anything else.
    """
    if (match := DURATION.fullmatch(text)) is not None:
        try:
            moment = now - timedelta(seconds=float(match[1]) * UNITS_S[match[2]])
        except OverflowError as error:
            raise ValueError("it is before the year 1") from error
    else:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return _time_text(moment.astimezone(UTC))


def _time_text(moment: datetime) -> str:
    """Return a time in UTC in the form of `LogRecord.time`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
