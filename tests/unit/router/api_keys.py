"""API keys for tests, and their file."""

import os
from pathlib import Path
from typing import Any

import yaml

from baton.router.auth.api_key import digest_of, new_key


class TestKeys:
    """A file of keys that is replaced atomically, as operators change it."""

    __test__ = False  # no test, despite its name

    def __init__(self, directory: Path) -> None:
        self.path = directory / "keys.yaml"
        self.entries: list[dict[str, Any]] = []
        self.write()

    def add(self, name: str, **limits: Any) -> str:
        """Add a key and return it."""
        key = new_key()
        self.entries.append({"name": name, "sha256": digest_of(key.encode()).hex(), **limits})
        self.write()
        return key

    def remove(self, name: str) -> None:
        """Remove a key."""
        self.entries = [entry for entry in self.entries if entry["name"] != name]
        self.write()

    def change(self, name: str, **limits: Any) -> None:
        """Change the limits of a key."""
        next(entry for entry in self.entries if entry["name"] == name).update(limits)
        self.write()

    def write(self) -> None:
        """Replace the file by the entries."""
        self.replace(yaml.safe_dump({"keys": self.entries}))

    def replace(self, text: str) -> None:
        """Replace the file by a text."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.path)


def bearer(key: str) -> dict[str, str]:
    """Return the header with a key."""
    return {"authorization": f"Bearer {key}"}
