"""Reader of the profiles that `baton bench --profile` writes."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

from baton.loadtool.datasets.files import unreadable
from baton.loadtool.errors import DatasetError
from baton.loadtool.profile import FORMAT, ProfiledRequest

NAMES = tuple(field.name for field in fields(ProfiledRequest))


def read_profile(path: Path) -> list[ProfiledRequest]:
    """Return a profile's requests. Raises DatasetError if the file is not a profile, or has no requests."""
    try:
        content = orjson.loads(path.read_bytes())
    except OSError as error:
        raise unreadable(path, error) from error
    except orjson.JSONDecodeError as error:
        raise DatasetError(f"{path}: no JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DatasetError(f"{path}: no profile of `baton bench --profile` (its format is not {FORMAT!r})")
    requests = content.get("requests")
    if not isinstance(requests, list) or not requests:
        raise DatasetError(f"{path}: no requests")
    return [_request(path, number, each) for number, each in enumerate(requests)]


def _request(path: Path, number: int, record: Any) -> ProfiledRequest:
    missing = [name for name in NAMES if not isinstance(record, dict) or name not in record]
    if missing:
        raise DatasetError(f"{path}, request {number}: no {', '.join(missing)}")
    numbers = [record[name] for name in ("sent_s", "ttft_s", "uncached_tokens", "output_tokens")]
    if not all(isinstance(each, int | float) and each >= 0 for each in numbers):
        raise DatasetError(f"{path}, request {number}: its times and counts must be numbers from 0 on")
    return ProfiledRequest(**{name: record[name] for name in NAMES})
