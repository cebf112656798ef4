"""A LoRA adapter that clients choose by its name."""

import re
from dataclasses import asdict, dataclass, fields

import orjson

from baton.settings.values import shown

MAX_ADAPTERS = 1000  # of one model
MAX_NAME_CHARS = 128
MAX_PATH_CHARS = 4096
PART = r"([A-Za-z0-9_-]|\.[A-Za-z0-9_-]|\.\.[A-Za-z0-9._-])[A-Za-z0-9._-]*"  # of a name, which is neither . nor ..
NAME_PATTERN = f"^{PART}(/{PART})*$"
NAME = re.compile(NAME_PATTERN)
NAME_RULE = (
    f"1 to {MAX_NAME_CHARS} letters, digits, dots, hyphens, underscores and slashes, with no slash at either end and "
    "no part between slashes that is empty, . or .."
)
DIGEST = re.compile(r"[\x21-\x7e]{1,1024}")


def is_adapter_name(name: str) -> bool:
    """Return whether a text can be the name of an adapter. It is part of URLs and of paths below a directory."""
    return len(name) <= MAX_NAME_CHARS and NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter of a served model, as all routers of a deployment know it."""

    name: str  # for clients
    path: str  # its directory, as the workers see it
    digest: str  # of its contents; equal at all workers
    created_s: int = 0  # Unix time at which it was loaded first

    def encode(self) -> str:
        """Return the adapter as JSON."""
        return orjson.dumps(asdict(self)).decode()


FIELDS = frozenset(entry.name for entry in fields(Adapter))


def decode_adapter(text: str | bytes) -> Adapter:
    """Return the adapter in a text of `Adapter.encode`, also of a later version. Raises ValueError."""
    values = orjson.loads(text)
    if not isinstance(values, dict):
        raise ValueError(f"{shown(text)} is not an adapter")
    try:
        adapter = Adapter(**{name: value for name, value in values.items() if name in FIELDS})
    except TypeError as error:
        raise ValueError(f"{shown(text)}: {error}") from error
    texts = (adapter.name, adapter.path, adapter.digest)
    if not all(isinstance(each, str) for each in texts) or type(adapter.created_s) is not int:
        raise ValueError(f"{shown(text)} has a value of a wrong type")
    if not is_adapter_name(adapter.name) or not is_path(adapter.path) or DIGEST.fullmatch(adapter.digest) is None:
        raise ValueError(f"{shown(text)} has a name, path or digest that no adapter has")
    return adapter


def is_path(path: str) -> bool:
    """Return whether a text can be the path of an adapter at a worker."""
    return 0 < len(path) <= MAX_PATH_CHARS and path.isprintable()
