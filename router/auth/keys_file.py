"""The file that has the API keys: YAML, with a digest for each key and never a key.

keys:
  - name: team-a                # unlike any other; stands in logs
    sha256: "9f86d0..."         # of the key, in hexadecimal
    priority: 0                 # all from here on may be left out
    max_inflight: 64
    requests_per_minute: 600
    tokens_per_minute: 200000
    cache_salt: research        # scope within which cached prompts are shared
    expires: 2027-01-31T00:00:00Z
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import yaml

from baton.router.auth.api_key import HEX_DIGEST, ApiKey
from baton.settings.config_file import BAD_SCALAR, build, check_section
from baton.settings.names import NAME_RULE, is_name
from baton.settings.options import OptionInfo, options_of
from baton.settings.values import OptionError

try:
    from yaml import CSafeLoader as Loader
except ImportError:  # yaml was built without its library: the same, slower
    from yaml import SafeLoader as Loader  # type: ignore[assignment]  # they take and give the same

MAX_DEPTH = 16  # of nested lists and mappings; there are three
INT32_MAX = (1 << 31) - 1


class InvalidKeysFile(OptionError):
    """The file cannot be read or says what it must not; the text names the place, and repeats nothing secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """One key as it stands in the file."""

    name: str
    sha256: str
    priority: int = 0
    max_inflight: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    cache_salt: str | None = None
    expires: str | None = None


ENTRY_INFOS = {
    "priority": OptionInfo("Priority of its requests.", minimum=-INT32_MAX, maximum=INT32_MAX),
    "max_inflight": OptionInfo("Most choices that wait or are generated.", minimum=1),
    "requests_per_minute": OptionInfo("Requests a minute.", minimum=1),
    "tokens_per_minute": OptionInfo("Tokens of prompts and outputs a minute.", minimum=1),
}
ENTRY_OPTIONS = options_of(KeyEntry, ENTRY_INFOS)

# Of what a path leads to: another file under the same name, or the same file written anew, has another one.
Signature = tuple[int, int, int, int]


class KeysFile:
    """Owns what was last read of the file, to tell when it is another."""

    def __init__(self, path: str) -> None:
        """Nothing is read yet."""
        self.path = Path(path)
        self._signature: Signature | None = None

    def has_changed(self) -> bool:
        """Whether there is something that `read` has not seen; that the file is gone is something too."""
        return self._look() != self._signature

    def read(self) -> list[ApiKey]:
        """The keys. Raises InvalidKeysFile; the file counts as seen all the same."""
        try:
            with self.path.open("rb") as file:
                self._signature = _signature(os.fstat(file.fileno()))
                text = file.read()
        except OSError as error:
            self._signature = self._look()
            raise InvalidKeysFile(f"cannot read {self.path}: {error.strerror}") from None
        return read_keys(text, str(self.path))

    def _look(self) -> Signature | None:
        """What the path leads to now; None: nothing."""
        try:
            return _signature(self.path.stat())
        except OSError:
            return None


def read_keys(text: bytes, where: str) -> list[ApiKey]:
    """The keys of a file's text. Raises InvalidKeysFile."""
    content = _load(text, where)
    if not isinstance(content, Mapping) or set(content) != {"keys"} or not isinstance(content["keys"], list):
        raise InvalidKeysFile(f"{where}: must be a mapping with a list under `keys`, and nothing else")
    keys = [_key(entry, f"{where}: keys[{place}]") for place, entry in enumerate(content["keys"])]
    for what, values in (("name", [key.name for key in keys]), ("sha256", [key.digest.hex() for key in keys])):
        seen: dict[str, int] = {}
        for place, value in enumerate(values):
            first = seen.setdefault(value, place)
            if first != place:
                raise InvalidKeysFile(f"{where}: keys[{place}].{what}: is that of keys[{first}] too")
    return keys


def _load(text: bytes, where: str) -> object:
    """The YAML document. A parser's own words would repeat the line, perhaps with a key in it."""
    try:
        _refuse_depth(text)
        loader = Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _refuse_twice(node, set())
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        place = f" (line {error.problem_mark.line + 1})" if error.problem_mark is not None else ""
        raise InvalidKeysFile(f"{where}: is not YAML, or has a key twice{place}") from None
    except (yaml.YAMLError, OverflowError, RecursionError, *BAD_SCALAR):
        raise InvalidKeysFile(f"{where}: is not YAML") from None


def _refuse_depth(text: bytes) -> None:
    """Raises YAMLError for lists within lists without end: the library would fall over them."""
    depth = 0
    for event in yaml.parse(text, Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise yaml.YAMLError("nested too deeply")


def _refuse_twice(node: yaml.Node, checked: set[int]) -> None:
    """Raises ConstructorError if a mapping has a key twice: YAML would quietly take the last one."""
    if id(node) in checked:
        return  # an alias of it was here before
    checked.add(id(node))
    if isinstance(node, yaml.MappingNode):
        names = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in names:
                raise yaml.constructor.ConstructorError(None, None, "twice", key.start_mark)
            names.add(key.value)
            _refuse_twice(value, checked)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _refuse_twice(each, checked)


def _key(entry: object, where: str) -> ApiKey:
    if not isinstance(entry, Mapping):
        raise InvalidKeysFile(f"{where}: must be a mapping with a name and a sha256")
    if not {"name", "sha256"} <= set(entry):
        raise InvalidKeysFile(f"{where}: must have a name and a sha256")
    digest = entry["sha256"]
    if not isinstance(digest, str) or not HEX_DIGEST.fullmatch(digest):  # perhaps a key: it is not repeated
        raise InvalidKeysFile(f"{where}.sha256: must be the 64 hexadecimal digits of a key's SHA-256, in quotes")
    values = {str(name): str(value) if isinstance(value, date) else value for name, value in entry.items()}
    try:
        checked = build(KeyEntry, ENTRY_OPTIONS, check_section(ENTRY_OPTIONS, values, f"{where}."))
    except OptionError as error:
        raise InvalidKeysFile(str(error)) from None
    for field, name in (("name", checked.name), ("cache_salt", checked.cache_salt)):
        if name is not None and not is_name(name):
            raise InvalidKeysFile(f"{where}.{field}: must be {NAME_RULE}")
    return ApiKey(
        name=checked.name,
        digest=bytes.fromhex(digest),
        priority=checked.priority,
        max_inflight=checked.max_inflight,
        requests_per_minute=checked.requests_per_minute,
        tokens_per_minute=checked.tokens_per_minute,
        cache_scope=checked.cache_salt,
        expires_s=None if checked.expires is None else _unix_time(checked.expires, f"{where}.expires"),
    )


def _unix_time(text: str, where: str) -> float:
    """The Unix time of an ISO 8601 one; without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InvalidKeysFile(f"{where}: must be a time such as 2027-01-31T00:00:00Z") from None


def _signature(status: os.stat_result) -> Signature:
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
