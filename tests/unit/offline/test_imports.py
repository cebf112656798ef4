"""`import baton` is fast: the offline API is imported when it is first used."""

import subprocess
import sys

import pytest

import baton


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, baton; print([name for name in sys.modules if name.startswith('baton.')], 'LLM' in dir(baton))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"


def test_every_name_of_the_package_exists() -> None:
    for name in baton.__all__:
        assert getattr(baton, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'baton' has no attribute 'LMM'"):
        baton.LMM  # type: ignore[attr-defined]  # noqa: B018  # what is tested
