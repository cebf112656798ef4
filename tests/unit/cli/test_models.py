"""`baton models`, and the page with the same list."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from baton.__main__ import main
from baton.engine.families.base import Family
from baton.engine.families.registry import FAMILIES, family_of

PAGE = Path(__file__).parents[3] / "docs" / "models.md"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.title)
def test_command_and_page_list_every_family(family: Family) -> None:
    result = CliRunner().invoke(main, ["models"])
    assert result.exit_code == 0
    for name in family.architectures:
        assert family_of(name) is family
        assert any(
            line.split("  ")[1] == family.title for line in result.output.splitlines() if line.endswith(f" {name}")
        )
        assert f"| {family.title} | `{name}` |" in PAGE.read_text()


def test_formats_of_weights_are_listed() -> None:
    output = CliRunner().invoke(main, ["models"]).output
    assert "quantization_config: fp8, compressed-tensors, gptq, awq, auto-round, mxfp4\n" in output
    assert "GGUF files: llama, " in output
