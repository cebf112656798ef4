"""The Dockerfile's instructions, and what of the tree its build sees."""

import fnmatch
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Stage:
    """One stage, by its name."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)  # the word, and what follows it

    def all_of(self, word: str) -> list[str]:
        """What follows each instruction of this kind."""
        return [rest for each, rest in self.instructions if each == word]


def stages() -> dict[str, Stage]:
    """Every stage in order; comments are left out and continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found: dict[str, Stage] = {}
    for line in filter(None, map(str.strip, text.replace("\\\n", " ").splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = Stage(name, base)
        elif found:
            found[list(found)[-1]].instructions.append((word, re.sub(r"\s+", " ", rest)))
    return found


def whole(name: str) -> list[tuple[str, str]]:
    """The instructions of a stage and of those that it begins with."""
    stage = stages()[name]
    return [*(whole(stage.base) if stage.base in stages() else ()), *stage.instructions]


def copied() -> set[str]:
    """What is copied from the tree, in any stage."""
    lines = [line for stage in stages().values() for line in stage.all_of("COPY") if not line.startswith("--from")]
    return {source.rstrip("/") for line in lines for source in line.split()[:-1]}


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets a path of the tree into the build: the last pattern that fits decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip().lstrip("!").rstrip("/")
        if pattern and not pattern.startswith("#") and any(_fits(each, pattern) for each in _with_parents(path)):
            sent = line.startswith("!")
    return sent


def _with_parents(path: str) -> list[str]:
    pure = PurePosixPath(path)
    return [str(pure), *(str(parent) for parent in pure.parents if str(parent) != ".")]


def _fits(path: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return any(fnmatch.fnmatchcase(path[start:], pattern[3:]) for start in _starts(path))
    return path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)


def _starts(path: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("/", path))]
