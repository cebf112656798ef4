"""Reading datasets: errors name the file and the line."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson

from baton.loadtool.errors import DatasetError


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, with their numbers from 1 on."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error


def json_records(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    """The objects of a JSONL file, with their line numbers."""
    for number, line in lines_of(path):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise DatasetError(f"{path}, line {number}: no JSON ({error})") from error
        if not isinstance(record, dict):
            raise DatasetError(f"{path}, line {number}: no JSON object")
        yield number, record


def csv_records(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The rows of a CSV file that has these columns, with their line numbers."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise DatasetError(
                    f"{path}: no column {', '.join(missing)}; the first line must name {','.join(columns)}"
                )
            for row in reader:
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, error) from error


def count_of(value: object, name: str, path: Path, line: int, minimum: int = 0) -> int:
    """A whole number of a record."""
    try:
        number = float(str(value))
    except ValueError:
        number = float("nan")
    if not (number.is_integer() and number >= minimum):
        raise DatasetError(
            f"{path}, line {line}: {name} is {str(value)[:50]!r}, but must be a number from {minimum} on"
        )
    return int(number)


def unreadable(path: Path, error: Exception) -> DatasetError:
    """A file that cannot be read."""
    return DatasetError(f"{path}: {getattr(error, 'strerror', None) or error}")
