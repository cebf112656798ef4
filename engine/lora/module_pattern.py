"""`rank_pattern` or `alpha_pattern` of an adapter: values for modules the ends of whose names match a key, as in PEFT.

A key is a regular expression that matches whole parts of the end of a name; of several, the first one counts. Nearly
all keys are plain names, in which `.` matches any character. They are found by one look-up for each end of a name,
since adapters may have thousands of keys and of modules.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from baton.engine.checkpoint.json_object import MAX_NUMBER, JsonObject, shown
from baton.engine.errors import InvalidAdapter

MAX_KEYS = 10_000
MAX_TRIES = 3_000_000  # to find a name; some seconds
MAX_MATCHING_S = 10.0  # CPU time of regular expressions, which may take long for each name
CHOICE = re.compile(r"[(*+?{]")  # of characters in a regular expression
MAX_CHOICES = 4
MAX_ALTERNATIVES = 200
REPEATED_GROUP = re.compile(r"\)[*+?{]")
START = "^"  # in front of keys that match whole names only
PLAIN = re.compile(r"\^?(?:[\w.-]|\\\.)+", re.ASCII)

Wildcards = tuple[int, ...]  # places in a plain key that match any character


@dataclass(frozen=True, slots=True)
class Entry:
    """Value of a key."""

    place: int  # among all keys
    value: float


class ModulePattern:
    """Values of modules by keys that match their names."""

    def __init__(self, source: str) -> None:
        """source: of the pattern, for errors."""
        self._source = source
        self._plain: dict[tuple[Wildcards, str], Entry] = {}
        self._wildcards: dict[int, set[Wildcards]] = {}  # of plain keys, by length
        self._expressions: list[tuple[re.Pattern[str], Entry]] = []
        self._num_tries = 0
        self._matching_s = 0.0

    @classmethod
    def of(cls, config: JsonObject, name: str) -> "ModulePattern":
        """Read a pattern of an adapter's config. Raises InvalidAdapter."""
        inner = config.inner(name)
        if len(inner.values) > MAX_KEYS:
            raise InvalidAdapter(f"{inner.source} has {len(inner.values)} keys, over the limit of {MAX_KEYS}")
        made, minimum = cls(inner.source), 1 if name == "rank_pattern" else -MAX_NUMBER
        for place, key in enumerate(inner.values):
            made._add(key, Entry(place, inner.number(key, minimum=minimum)))
        return made

    def value_of(self, module: str, default: float) -> float:
        """Return the value of the first key that matches a module's name. Raises InvalidAdapter."""
        found = [*self._plain_matches(module), *self._first_expression(module)]
        return min(found, key=lambda entry: entry.place).value if found else default

    def _add(self, key: str, entry: Entry) -> None:
        if PLAIN.fullmatch(key) is None:
            self._expressions.append((_compiled(self._source, key), entry))
            return
        wildcards, text = _parsed(key.removeprefix(START))
        self._wildcards.setdefault(len(text), set()).add(wildcards)
        text = START + text if key.startswith(START) else text
        self._plain.setdefault((wildcards, text), entry)

    def _plain_matches(self, module: str) -> Iterator[Entry]:
        starts = [0, *(place + 1 for place, character in enumerate(module) if character == ".")]
        for start in starts:
            end = module[start:]
            known = self._wildcards.get(len(end), ())
            self._num_tries += len(known)
            if self._num_tries > MAX_TRIES:
                raise self._too_complex()
            for wildcards in known:
                text = _with_dots(end, wildcards)
                for found in (text,) if start else (text, START + text):
                    if (entry := self._plain.get((wildcards, found))) is not None:
                        yield entry

    def _first_expression(self, module: str) -> Iterator[Entry]:
        started_s = time.thread_time()
        for names, entry in self._expressions:
            is_match = names.match(module)
            now_s = time.thread_time()
            self._matching_s += now_s - started_s
            started_s = now_s
            if self._matching_s > MAX_MATCHING_S:
                raise self._too_complex()
            if is_match:
                yield entry
                return

    def _too_complex(self) -> InvalidAdapter:
        return InvalidAdapter(
            f"{self._source} has too many keys that are regular expressions for the modules of this adapter, or too "
            "complex ones: name the modules instead"
        )


def _parsed(key: str) -> tuple[Wildcards, str]:
    """Return the places of the wildcards in a plain key, and the key without backslashes."""
    wildcards: list[int] = []
    length = 0
    parts = key.split("\\.")
    for part in parts:
        wildcards += [length + place for place, character in enumerate(part) if character == "."]
        length += len(part) + 1
    return tuple(wildcards), ".".join(parts)


def _with_dots(name: str, places: Wildcards) -> str:
    characters = list(name)
    for place in places:
        characters[place] = "."
    return "".join(characters)


def _compiled(source: str, key: str) -> re.Pattern[str]:
    """Compile a key. Refuses those whose matching may take forever: it cannot be interrupted, and stops all threads."""
    num_choices = len(CHOICE.findall(key))
    if REPEATED_GROUP.search(key) or num_choices > MAX_CHOICES or key.count("|") > MAX_ALTERNATIVES:
        raise InvalidAdapter(
            f"{source}: {shown(key)} is too complex: a key may have {MAX_CHOICES} groups and repeats, and no repeated "
            "groups; name the modules instead"
        )
    try:
        return re.compile(rf"(.*\.)?({key})$")
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidAdapter(f"{source}: {shown(key)} is not a regular expression: {error}") from error
