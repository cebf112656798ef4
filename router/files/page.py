"""Pages of lists of files and batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from baton.router.errors import FieldError

ASCENDING, DESCENDING = "asc", "desc"


class Listed(Protocol):
    """A file or a batch."""

    @property
    def id(self) -> str:
        """Id, unique among the listed."""
        ...

    def body(self) -> dict[str, object]:
        """Return OpenAI's object."""
        ...


@dataclass(frozen=True, slots=True)
class PageRule:
    """Query parameters of a list."""

    default_limit: int
    max_limit: int

    def parameters(self) -> list[dict[str, Any]]:
        """Return the parameters for /openapi.json."""
        limit = {"type": "integer", "minimum": 1, "maximum": self.max_limit, "default": self.default_limit}
        order = {"type": "string", "enum": [ASCENDING, DESCENDING], "default": DESCENDING}
        schemas = {"limit": limit, "order": order, "after": {"type": "string"}}
        return [{"name": name, "in": "query", "schema": schema} for name, schema in schemas.items()]

    def body(self, query: Mapping[str, str], items: Sequence[Listed]) -> dict[str, object]:
        """Return the page of `items`, which are in order from the oldest to the newest. Raises FieldError."""
        limit, order, after = query.get("limit", str(self.default_limit)), query.get("order", DESCENDING), ""
        if not (limit.isascii() and limit.isdecimal() and len(limit) < 8 and 1 <= int(limit) <= self.max_limit):
            raise FieldError("limit", f"limit: must be a number from 1 to {self.max_limit}")
        if order not in (ASCENDING, DESCENDING):
            raise FieldError("order", f"order: must be {ASCENDING} or {DESCENDING}")
        ordered = list(items) if order == ASCENDING else list(reversed(items))
        first = 0
        if after := query.get("after", ""):
            places = {item.id: place for place, item in enumerate(ordered)}
            if after not in places:
                raise FieldError("after", f"after: there is no '{after[:128]}'")
            first = places[after] + 1
        page = ordered[first : first + int(limit)]
        ends = {"first_id": page[0].id if page else None, "last_id": page[-1].id if page else None}
        data = [item.body() for item in page]
        return {"object": "list", "data": data, **ends, "has_more": first + int(limit) < len(ordered)}
