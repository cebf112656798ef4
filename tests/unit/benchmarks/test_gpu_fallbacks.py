"""A stage of the GPU check fails if an engine takes slower kernels than intended."""

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from baton.engine.attention.factory import attention_for
from benchmarks.gpu.fallbacks import PACKAGE, watch
from benchmarks.gpu.numerics.attention import Model
from benchmarks.gpu.stage import Record

GPU = torch.device("meta")  # whatever is no CPU
MODEL = Model("4 / 2 of 64", 4, 2, 64)


@pytest.fixture
def record() -> Iterator[Record]:
    watched = Record()
    handler = watch(watched)
    yield watched
    logging.getLogger(PACKAGE).removeHandler(handler)


def test_a_fallback_is_a_failed_finding(record: Record) -> None:
    config = replace(MODEL, head_dim=80).config("bfloat16")
    for _ in range(2):
        attention_for(config, 16, GPU)
    assert [(each.ok, "head width of 80" in each.detail) for each in record.findings] == [(False, True)]


def test_a_fallback_by_design_is_a_note(record: Record) -> None:
    attention_for(replace(MODEL.config("bfloat16"), num_kv_shared_layers=1), 16, GPU)
    assert not record.findings
    assert "layers that share KV" in record.notes[0]
