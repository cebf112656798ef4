"""docs/kubernetes.md says what is so: its values are the chart's, and its commands are Baton's."""

import json
import re
from typing import Any

import pytest
import yaml

from baton.__main__ import COMMANDS
from tests.helm.charts import CHART, MODEL, merged, render

PAGE = (CHART.parents[1] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
QUOTED = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", PAGE)


def property_of(schema: dict[str, Any], path: list[str]) -> bool:
    """Whether a value of the schema has this path."""
    if "$ref" in schema:
        return property_of(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], path)
    if not path:
        return True
    inner = schema.get("properties", {}).get(path[0])
    return inner is not None and property_of(inner, path[1:])


@pytest.mark.parametrize("block", BLOCKS)
def test_its_values_install(block: str) -> None:
    assert len(render(merged(MODEL, yaml.safe_load(block)))) > 8


def test_the_values_that_it_names_are_there() -> None:
    names = [
        text.rstrip(".*").partition(":")[0].partition("=")[0].removeprefix("--set ").split(".")
        for text in QUOTED
        if re.fullmatch(r"[a-zA-Z.]+(\.\*)?([:=].*)?", text)
    ]
    known = [name for name in names if name[0] in SCHEMA["properties"]]
    assert len(known) > 20
    assert [".".join(name) for name in known if not property_of(SCHEMA, name)] == []


def test_the_commands_that_it_gives_are_there() -> None:
    commands = set(re.findall(r"(?:^|`)baton (\w+)", PAGE, re.MULTILINE))
    assert {"bench", "status", "drain", "key", "doctor"} <= commands <= set(COMMANDS)
