"""Readers of dataset files; errors name the file and the line."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson

from baton.loadtool.errors import DatasetError


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield non-empty lines with their line numbers, from 1."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error


def json_records(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Yield the objects of a JSONL file with their line numbers. Raises DatasetError."""
    for number, line in lines_of(path):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise DatasetError(f"{path}, line {number}: invalid JSON ({error})") from error
        if not isinstance(record, dict):
            raise DatasetError(f"{path}, line {number}: not a JSON object")
        yield number, record


def csv_records(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the rows of a CSV file with their line numbers. Raises DatasetError if a column is missing."""
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
    """Return a field of a record as an integer. Raises DatasetError."""
    try:
        number = float(str(value))
    except ValueError:
        number = float("nan")
    if not (number.is_integer() and number >= minimum):
        raise DatasetError(
            f"{path}, line {line}: {name} is {str(value)[:50]!r}, but must be an integer of at least {minimum}"
        )
    return int(number)


def unreadable(path: Path, error: Exception) -> DatasetError:
    """Return the error for an unreadable file."""
    return DatasetError(f"{path}: {getattr(error, 'strerror', None) or error}")
