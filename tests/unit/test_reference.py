"""The generated reference: tables are those of the code, and leave nothing out."""

import ast
import re
from collections.abc import Iterator

import pytest

from baton.engine.errors import InvalidRequest, QueueFull
from baton.router import errors as router_errors
from baton.rpc.status import ServiceError
from scripts.reference.errors import CASES
from scripts.reference.headers import REQUEST, RESPONSE
from scripts.reference.tables import filled, table
from scripts.reference_tables import PAGES, TABLES
from scripts.site.links import ROOT

CODE = re.compile(r"[a-z]+(_[a-z]+)+")


def calls(*names: str) -> Iterator[ast.Call]:
    """Yield the router's calls of functions with these names."""
    for path in sorted((ROOT / "router").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                yield node


def subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    """Yield a class and all that derive from it."""
    yield kind
    for each in kind.__subclasses__():
        yield from subclasses(each)


def test_tables_are_current() -> None:
    used = set()
    for path in sorted(PAGES.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        used |= set(re.findall(r"<!-- reference: (\w+) -->", text))
        assert filled(text, TABLES) == text, "run python -m scripts.reference_tables"
    assert used == TABLES.keys()


def test_an_old_table_is_replaced_and_the_text_around_it_stays() -> None:
    page = "a\n<!-- reference: t -->\n| old |\n<!-- end of reference -->\nb\n"
    current = table(("x", "y"), [("1|2", "")])
    assert current == "| x | y |\n| --- | --- |\n| 1\\|2 | |\n"
    assert filled(page, {"t": lambda: current}) == page.replace("| old |\n", current)
    with pytest.raises(KeyError, match="t"):
        filled(page, {})


def test_every_header_is_listed() -> None:
    found: set[str] = set()
    for path in (ROOT / "router").rglob("*.py"):
        found |= set(re.findall(r"\"(x-baton-[a-z-]+)\"", path.read_text(encoding="utf-8")))
    assert found == {name for name in (*RESPONSE, *REQUEST) if name.startswith("x-baton-")}


def test_every_error_that_clients_see_is_listed() -> None:
    kinds = {each for root in (ServiceError, InvalidRequest, QueueFull) for each in subclasses(root)}
    seen = {each for each in kinds if each.__module__ in (router_errors.__name__, ServiceError.__module__)}
    listed = {type(case.error) for case in CASES}
    assert {each.__name__ for each in seen - listed} == {"ServiceError", "FieldError"} - {
        each.__name__ for each in listed
    }


def test_every_error_code_is_listed() -> None:
    page = (PAGES / "errors.md").read_text(encoding="utf-8")
    codes = {
        argument.value
        for call in calls("FieldError", "error_body", "NotStored")
        for argument in call.args[2:]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and CODE.fullmatch(argument.value)
    }
    assert {"unknown_parameter", "unknown_url", "rate_limit_exceeded"} <= codes
    assert [code for code in sorted(codes) if f"`{code}`" not in page] == []
