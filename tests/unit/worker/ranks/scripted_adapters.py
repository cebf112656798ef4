"""Adapters of a rank that has no model."""

from baton.engine.errors import InvalidAdapter


class ScriptedAdapters:
    """Reads every path but `nowhere`, and records what is read and dropped."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    async def read(self, name: str, path: str, number: int) -> str:
        if path == "nowhere":
            raise InvalidAdapter(f"{path} does not exist")
        self.events.append((f"{name} at {path}", number))
        return f"digest of {path}"

    def drop(self, number: int) -> None:
        self.events.append(("dropped", number))
