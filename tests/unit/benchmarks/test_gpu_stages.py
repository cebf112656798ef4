"""Stages of the GPU check for what engines do besides plain steps: they pass on a CPU, and find planted errors."""

import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton.engine.execution import model_runner
from baton.engine.execution.batch import Batch
from baton.engine.lora import adaptable
from baton.engine.lora.adaptable_layer import AdaptableExperts, AdaptableLayer
from baton.engine.lora.base import ModelAdapters
from baton.engine.lora.config import LoraConfig
from baton.engine.lora.row_slots import RowSlots
from baton.engine.lora.segmented import SegmentedAdapters
from baton.engine.lora.stacked import StackedAdapters
from baton.engine.outputs import SampledToken
from baton.kvtransfer.store.pool_blocks import PoolBlocks
from benchmarks.gpu.numerics import kv_stores, lora, speculation
from benchmarks.gpu.small_models import SMALL_MODELS
from benchmarks.gpu.stage import Record, Setting
from benchmarks.gpu.stages import STAGES

ROOT = Path(__file__).parents[3]


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(torch.device("cpu"), True, tmp_path)


def wrong(record: Record) -> set[str]:
    """The failed findings, without the names of models."""
    assert record.findings
    return {finding.case.rpartition(": ")[2] for finding in record.findings if not finding.ok}


def test_every_stage_has_a_module_of_its_own() -> None:
    modules = [stage.module for stage in STAGES]
    assert len(set(modules)) == len(modules)
    assert all((ROOT / f"benchmarks/gpu/{module.replace('.', '/')}.py").exists() for module in modules)


@pytest.mark.slow
@pytest.mark.parametrize("is_swapped", [False, True])
def test_adapters_of_a_gpu_are_checked(setting: Setting, monkeypatch: pytest.MonkeyPatch, is_swapped: bool) -> None:
    """With the products that a GPU computes; with those of other slots, the check finds it."""
    config = LoraConfig(True, lora.MAX_LORAS, lora.RANK, 4 * lora.MAX_LORAS)
    is_reference = iter([True, False])

    def adapters(layers: Sequence[AdaptableLayer], mixtures: Sequence[AdaptableExperts]) -> ModelAdapters:
        if next(is_reference):
            return SegmentedAdapters(layers, mixtures)
        made = StackedAdapters(layers, config, torch.float32, mixtures)
        if is_swapped:
            plan = made.plan

            def plan_others(batch: Batch) -> None:
                plan(batch)
                if made.rows is not None:
                    made.rows = RowSlots(made.rows.elsewhere.roll(1, 1), made.rows.slots, made.rows.rescales)

            made.plan = plan_others  # type: ignore[method-assign]
        return made

    monkeypatch.setattr(adaptable, "SegmentedAdapters", adapters)
    record, model = Record(), next(each for each in SMALL_MODELS if each.architecture == "llama3")
    lora.check_adapters(record, setting, model)
    assert wrong(record) == ({"logits", "greedy tokens"} if is_swapped else set())


@pytest.mark.slow
def test_drafts_that_are_accepted_unseen_are_found(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def accept_all(
        drafts: Sequence[int], sampled: Sequence[SampledToken], first: int, late_rows: Collection[int]
    ) -> int:
        return len(drafts)

    method, right, record = speculation.METHODS[1], Record(), Record()
    speculation.check_method(right, setting, method)
    assert wrong(right) == set()
    monkeypatch.setattr(model_runner, "num_accepted", accept_all)
    speculation.check_method(record, setting, method)
    assert method.case in wrong(record)


def test_a_head_that_drafts_other_tokens_is_found() -> None:
    reference: list[tuple[int, Sequence[int]]] = [(token, [token, 1]) for token in range(12)]
    record = Record()
    speculation.compare_drafts(record, "same", reference, reference)
    speculation.compare_drafts(record, "other", [(token, [0, 1]) for token, _ in reference], reference)
    speculation.compare_drafts(record, "after others", [(99, draft) for _, draft in reference], reference)
    assert [finding.ok for finding in record.findings] == [True, False, False]


@pytest.mark.slow
def test_a_block_that_is_fetched_too_late_is_found(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_in = PoolBlocks.copy_in

    def copy_all_but_one(self: PoolBlocks, buffer: Tensor, row: int, block: int) -> None:
        skipped.append(block)
        if len(skipped) != 3:
            copy_in(self, buffer, row, block)

    skipped: list[int] = []
    monkeypatch.setattr(PoolBlocks, "copy_in", copy_all_but_one)
    record, model = Record(), next(each for each in SMALL_MODELS if each.architecture == "qwen3")
    kv_stores.check_stores(record, setting, model, "auto")
    assert "fetch from host" in wrong(record)
    assert "fetch from disk" not in wrong(record)


@pytest.mark.slow
def test_comparisons_need_no_package_that_the_bundle_lacks() -> None:
    """Of those that only tests need."""
    lacking = ["pytest", "pytest_asyncio", "peft", "ray", "boto3", "obstore", "cryptography"]
    modules = [f"benchmarks.gpu.{stage.module}" for stage in STAGES if not stage.is_benchmark]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({lacking}))\n"
        f"from importlib import import_module; [import_module(name) for name in {modules}]"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
