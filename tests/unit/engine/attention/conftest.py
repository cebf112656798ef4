"""A small FlashInfer workspace: no kernel runs here, and 256 MiB take 0.1 s to zero."""

import pytest

from baton.engine.attention import flashinfer


@pytest.fixture(autouse=True)
def _small_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer, "WORKSPACE_BYTES", 1 << 10)
