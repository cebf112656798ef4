"""API keys for tests, and the file that has them."""

import os
from pathlib import Path
from typing import Any

import yaml

from baton.router.auth.api_key import digest_of, new_key


class TestKeys:
    """A file of keys that changes as operators change it: by another that takes its place."""

    __test__ = False  # no test, despite its name

    def __init__(self, directory: Path) -> None:
        self.path = directory / "keys.yaml"
        self.entries: list[dict[str, Any]] = []
        self.write()

    def add(self, name: str, **limits: Any) -> str:
        """Another key from now on; returns it."""
        key = new_key()
        self.entries.append({"name": name, "sha256": digest_of(key.encode()).hex(), **limits})
        self.write()
        return key

    def remove(self, name: str) -> None:
        """A key is no more."""
        self.entries = [entry for entry in self.entries if entry["name"] != name]
        self.write()

    def change(self, name: str, **limits: Any) -> None:
        """A key has other limits from now on."""
        next(entry for entry in self.entries if entry["name"] == name).update(limits)
        self.write()

    def write(self) -> None:
        """Puts the entries in place of the file."""
        self.replace(yaml.safe_dump({"keys": self.entries}))

    def replace(self, text: str) -> None:
        """Puts a text in place of the file."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.path)


def bearer(key: str) -> dict[str, str]:
    """The header that shows a key."""
    return {"authorization": f"Bearer {key}"}
