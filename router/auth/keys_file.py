"""The file of API keys: YAML, with the digest of each key and never the key.

keys:
  - name: team-a                # unique; appears in logs
    sha256: "9f86d0..."         # of the key, in hexadecimal
    priority: 0                 # this and all below are optional
    max_inflight: 64
    requests_per_minute: 600
    tokens_per_minute: 200000
    cache_salt: research        # scope within which cached prompts are shared
    max_pinned_fraction: 0.1
    expires: 2027-01-31T00:00:00Z
    admin: true                 # it may load LoRA adapters, clear the workers' caches, and use the console
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path

import yaml

from baton.router.auth.api_key import HEX_DIGEST, ApiKey
from baton.router.request_context import INT32_MAX
from baton.settings.config_file import BAD_SCALAR, build, check_section
from baton.settings.names import NAME_RULE, is_name
from baton.settings.options import described, option, options_of
from baton.settings.regular_file import open_regular
from baton.settings.values import OptionError

try:
    from yaml import CSafeLoader as Loader
except ImportError:  # yaml was built without libyaml; the pure Python loader is slower
    from yaml import SafeLoader as Loader  # type: ignore[assignment]  # same interface

MAX_DEPTH = 16  # of nested lists and mappings; a valid file has three levels


class InvalidKeysFile(OptionError):
    """The file cannot be read or is invalid; the message names the place and repeats nothing secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """One entry of the file."""

    name: str = field(metadata=described("Name, unique in the file; appears in logs."))
    sha256: str = field(metadata=described("SHA-256 of the key, in hexadecimal."))
    priority: int = option(0, "Priority of its requests.", minimum=-INT32_MAX, maximum=INT32_MAX)
    max_inflight: int | None = option(None, "Maximum completions that wait or are generated.", minimum=1)
    requests_per_minute: int | None = option(None, "Requests a minute.", minimum=1)
    tokens_per_minute: int | None = option(None, "Tokens of prompts and outputs a minute.", minimum=1)
    cache_salt: str | None = option(None, "Scope within which cached prompts are shared.")
    max_pinned_fraction: float | None = option(
        None, "Largest share of a worker's KV cache that its pins may hold.", minimum=0.000001, maximum=1
    )
    expires: str | None = option(None, "Time after which the key is invalid, in ISO 8601.")
    admin: bool = option(False, "Whether it may load LoRA adapters, clear the workers' caches, and use the console.")


ENTRY_OPTIONS = options_of(KeyEntry)

# Device, inode, mtime and size; changes if the file is replaced or rewritten.
Signature = tuple[int, int, int, int]


class KeysFile:
    """The path of the file, and the signature of the last version that was read, whether valid or not."""

    def __init__(self, path: str) -> None:
        """Read nothing yet."""
        self.path = Path(path)
        self._read: Signature | None = None  # None: nothing yet

    def has_changed(self) -> bool:
        """Return whether the file is not the version of the last `read` that could open it."""
        return self.signature() != self._read

    def read(self) -> list[ApiKey]:
        """Read the keys. Raises InvalidKeysFile.

        A file that cannot be opened still counts as changed: the cause, such as its mode or a lack of file descriptors,
        may end without a change of the signature.
        """
        try:
            with open_regular(self.path) as file:
                signature = _signature(os.fstat(file.fileno()))
                text = file.read()
        except OSError as error:
            raise InvalidKeysFile(f"cannot read {self.path}: {error.strerror}") from None
        self._read = signature
        return read_keys(text, str(self.path))

    def signature(self) -> Signature | None:
        """Return the current signature of the file; None if there is none."""
        try:
            return _signature(self.path.stat())
        except OSError:
            return None


def read_keys(text: bytes, where: str) -> list[ApiKey]:
    """Return the keys in a file's text; `where` names it in errors. Raises InvalidKeysFile."""
    content = _load(text, where)
    if not isinstance(content, Mapping) or set(content) != {"keys"} or not isinstance(content["keys"], list):
        raise InvalidKeysFile(f"{where}: must be a mapping with a list under `keys`, and nothing else")
    keys = [_key(entry, f"{where}: keys[{place}]") for place, entry in enumerate(content["keys"])]
    for what, values in (("name", [key.name for key in keys]), ("sha256", [key.digest.hex() for key in keys])):
        seen: dict[str, int] = {}
        for place, value in enumerate(values):
            first = seen.setdefault(value, place)
            if first != place:
                raise InvalidKeysFile(f"{where}: keys[{place}].{what}: must not be the same as in keys[{first}]")
    return keys


def _load(text: bytes, where: str) -> object:
    """Return the YAML document. Errors omit the parser's message: it repeats the line, which may contain a key."""
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
    """Raise YAMLError for deep nesting, which would exceed the parser's recursion limit."""
    depth = 0
    for event in yaml.parse(text, Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise yaml.YAMLError("nested too deeply")


def _refuse_twice(node: yaml.Node, checked: set[int]) -> None:
    """Raise ConstructorError if a mapping has a key twice: YAML would silently use the last one."""
    if id(node) in checked:
        return  # an alias of a node that was checked
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
    if not isinstance(digest, str) or not HEX_DIGEST.fullmatch(digest):  # not repeated in the error: it may be a key
        raise InvalidKeysFile(f"{where}.sha256: must be the 64 hexadecimal digits of a key's SHA-256, in quotes")
    values = {str(name): str(value) if isinstance(value, date) else value for name, value in entry.items()}
    try:
        checked = build(KeyEntry, check_section(ENTRY_OPTIONS, values, f"{where}."))
    except OptionError as error:
        raise InvalidKeysFile(str(error)) from None
    for key, name in (("name", checked.name), ("cache_salt", checked.cache_salt)):
        if name is not None and not is_name(name):
            raise InvalidKeysFile(f"{where}.{key}: must be {NAME_RULE}")
    return ApiKey(
        name=checked.name,
        digest=bytes.fromhex(digest),
        priority=checked.priority,
        max_inflight=checked.max_inflight,
        requests_per_minute=checked.requests_per_minute,
        tokens_per_minute=checked.tokens_per_minute,
        cache_scope=checked.cache_salt,
        max_pinned_fraction=checked.max_pinned_fraction,
        expires_s=None if checked.expires is None else _unix_time(checked.expires, f"{where}.expires"),
        is_admin=checked.admin,
    )


def _unix_time(text: str, where: str) -> float:
    """Return the Unix time of an ISO 8601 time; UTC if it has no zone."""
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InvalidKeysFile(f"{where}: must be a time such as 2027-01-31T00:00:00Z") from None


def _signature(status: os.stat_result) -> Signature:
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
