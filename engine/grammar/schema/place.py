"""Places in a JSON document, for errors."""

from dataclasses import dataclass

MAX_NAME_CHARS = 80
MAX_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a document, linked to the part that contains it: full paths would take quadratic memory."""

    name: str = ""  # in its parent, with its separator: ".items" or "[3]"
    parent: "Place | None" = None

    def __str__(self) -> str:
        """Return the path, shortened; empty for the document itself."""
        names: list[str] = []
        place: Place | None = self
        while place is not None:
            names.append(place.name if len(place.name) <= MAX_NAME_CHARS else f"{place.name[:MAX_NAME_CHARS]}...")
            place = place.parent
        path = "".join(reversed(names)).removeprefix(".")
        return path if len(path) <= MAX_SHOWN_CHARS else f"...{path[-MAX_SHOWN_CHARS:]}"
