"""Markdown tables, and the pages that have them."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

TABLE = re.compile(r"(<!-- reference: (\w+) -->\n).*?(<!-- end of reference -->)", re.DOTALL)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, with a line break at its end."""
    lines = [columns, ["---"] * len(columns), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n" for cells in lines)


def code(text: str) -> str:
    """Return a name as code; "" if there is none."""
    return f"`{text}`" if text else ""


def filled(page: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """Return the page with current tables. Raises KeyError for an unknown one."""
    return TABLE.sub(lambda match: match[1] + tables[match[2]]() + match[3], page)
