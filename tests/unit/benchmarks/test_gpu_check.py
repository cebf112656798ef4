"""The GPU check, run on a CPU with tiny shapes: it passes, and finds planted errors."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from baton.engine.attention.kind import PLAIN, AttentionKind
from baton.engine.attention.kv_append import KVAppend, append_in_torch
from baton.engine.attention.torch_reference import TorchAttention
from baton.engine.engine import Engine
from baton.engine.execution.batch import Batch
from baton.engine.kv.layer_states import LayerStates
from baton.engine.kv.scales import UNSCALED, KVScales
from baton.engine.layers.expert_pairs.choice import ChoiceKernels, choose_in_torch
from baton.engine.layers.expert_pairs.products import products_in_torch
from baton.engine.ops.torch_ops import TorchOps
from benchmarks.gpu.engine_session import Answer
from benchmarks.gpu.machine import describe_gpu
from benchmarks.gpu.numerics import attention, expert_pairs, families, kv_append, ops, packed
from benchmarks.gpu.numerics.answers import compare_answers
from benchmarks.gpu.numerics.closeness import OPERATION, Closeness
from benchmarks.gpu.numerics.models import compare_models
from benchmarks.gpu.results import merge
from benchmarks.gpu.speed import experts as experts_speed
from benchmarks.gpu.speed import fp8 as fp8_speed
from benchmarks.gpu.stage import Record, Setting
from benchmarks.gpu.stage_process import run_stage
from benchmarks.gpu.stages import stage_named

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
FACTOR = 1.01  # size of the planted errors


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(CPU, True, tmp_path)


class InexactOps(TorchOps):
    """Row operations whose norms are slightly too large."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        return super().rms_norm(x, weight, eps, offset) * FACTOR


class InexactAttention(TorchAttention):
    """Attention whose values are slightly too large, also in the cache."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer_cache: Tensor,
        batch: Batch,
        scales: KVScales = UNSCALED,
        kind: AttentionKind = PLAIN,
    ) -> Tensor:
        return super().forward(q, k, v * FACTOR, layer_cache, batch, scales, kind)


class Bfloat16Setting(Setting):
    """A setting with a GPU's dtype on this CPU."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16


@pytest.mark.slow
def test_the_command_runs_stages_and_stores_their_results(tmp_path: Path) -> None:
    results = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--quick", "--json", str(results)]
    names = ("ops", "kv append", "attention", "models", "new families", "fp8", "packed", "images", "graphs")
    names += ("handover", "serve", "mamba", "embeddings", "lora", "speculation", "offload", "kv stores")
    for stage in names:
        command += ["--only", stage]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    stages = json.loads(results.read_text())["stages"]
    assert list(stages) == list(names)
    for stage in stages.values():
        assert stage["ok"]
        assert stage["finished"]
        assert stage["num_findings"]
        assert stage["machine"]["gpu"] == "none"
    assert "models: right" in done.stdout


def test_decodes_of_a_model_with_experts_are_measured(setting: Setting) -> None:
    record = Record()
    experts_speed.run(setting, record)
    assert [row["batch"] for row in record.rows] == [1, 3]
    assert record.notes == ["1 requests: 0 launches, 0 us in all", "3 requests: 0 launches, 0 us in all"]  # on a CPU
    config = transformers.Qwen3MoeConfig(**experts_speed.QUICK)
    least, most = (experts_speed.step_bytes(config, batch, 64, 4) for batch in (1, 1_000_000))
    chosen = 4 * 2 * 3 * 64 * 32  # bytes of an expert in both layers
    assert least == 4 * (2 * (2 * 64 * 16 * 6 + 8 * 64 + 2 * 64 * 2 * 16) + 320 * 64) + 2 * chosen
    assert most - 1_000_000 * 4 * 2 * 2 * 64 * 2 * 16 == pytest.approx(
        4 * (2 * (2 * 64 * 16 * 6 + 8 * 64) + 320 * 64) + 8 * chosen
    )


def test_decodes_of_all_weights_are_measured(setting: Setting) -> None:
    record = Record()
    fp8_speed.run(setting, record)
    assert not record.findings  # they would be exceptions
    weights = ("FP8, rows", "FP8, blocks of 128 x 128", "float32")
    assert [(row["weights"], row["batch"]) for row in record.rows] == [
        (each, batch) for each in weights for batch in (1, 3)
    ]
    bounds = [row["bound ms"] for row in record.rows]
    assert bounds[0] == bounds[2] < bounds[4]  # a step reads fewer bytes
    assert any(note.startswith("quantising 5 x 256") for note in record.notes)
    assert "FP8 products of few tokens are torch's on this device" in record.notes
    assert sum("times as fast as float32" in note for note in record.notes) == 2


def test_an_operation_that_is_off_by_one_percent_is_found(setting: Setting) -> None:
    for each in (setting, Bfloat16Setting(CPU, True, setting.directory)):
        right, wrong = Record(), Record()
        ops.check_ops(right, each, TorchOps())
        assert all(finding.ok for finding in right.findings)
        ops.check_ops(wrong, each, InexactOps())
        found = {finding.case for finding in wrong.findings if not finding.ok}
        normed = {case for finding in wrong.findings if "rms_norm" in (case := finding.case) and ": sum" not in case}
        assert found == normed


def test_attention_that_caches_wrong_values_is_found(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    model = attention.QUICK_MODELS[0]
    inexact = InexactAttention.for_model(model.config("float32"), 16)
    monkeypatch.setattr(attention, "attention_for", lambda *_: inexact)
    record = Record()
    with torch.inference_mode():
        attention.check_attention(record, setting, model, "auto", 16, seed=0)
    caches = [finding for finding in record.findings if finding.case.endswith("cache")]
    assert caches
    assert not any(finding.ok for finding in caches)
    prompts = next(finding for finding in record.findings if finding.case.endswith("prompts"))
    assert not prompts.ok  # they attend only to new tokens


def test_an_append_of_wrong_values_or_to_wrong_slots_is_found(setting: Setting) -> None:
    def of_wrong_values(heads: Tensor, *arguments: Any) -> Tensor:
        return append_in_torch(heads * FACTOR, *arguments)

    def into_other_slots(heads: Tensor, *arguments: Any) -> Tensor:
        *others, slots, scales = arguments
        return append_in_torch(heads, *others, slots.flip(0), scales)

    def found(append: KVAppend, shape: kv_append.Shape) -> set[str]:
        record = Record()
        kv_append.check_append(record, setting, append, shape, torch.float32, 7)
        return {finding.case.rpartition(": ")[2] for finding in record.findings if not finding.ok}

    plain = kv_append.SHAPES[5]
    assert found(append_in_torch, plain) == set()
    assert found(of_wrong_values, plain) == {
        "queries",
        "keys",
        "keys in fp32",
        "separate kernels",
        "values and the rest",
    }
    assert found(into_other_slots, plain) == {"keys", "keys in fp32", "values and the rest"}


def test_wrong_experts_of_few_tokens_are_found(tmp_path: Path) -> None:
    setting, shape = Bfloat16Setting(CPU, True, tmp_path), expert_pairs.SHAPES[3]

    def found(check: Callable[..., None], *kernels: object) -> set[str]:
        record = Record()
        check(record, setting, *kernels, shape, 3)
        assert record.findings
        return {finding.case.rpartition(", ")[2] for finding in record.findings if not finding.ok}

    assert found(expert_pairs.check_products, products_in_torch, None) == set()
    wrong = found(expert_pairs.check_products, lambda *given: products_in_torch(*given) * 1.02, None)
    assert wrong == {"routed: fp32", "the same experts: fp32"}

    def choose(logits: Tensor, num_chosen: int, factor: float, is_normed: bool) -> tuple[Tensor, Tensor]:
        weights, _ = choose_in_torch(logits, num_chosen, factor, is_normed)
        order = logits.nan_to_num(-1.0).sort(dim=1, descending=True, stable=True).indices
        return weights, order[:, :num_chosen]

    right = ChoiceKernels(lambda x, weight: (x.double() @ weight.double().T).float(), choose)
    assert found(expert_pairs.check_choice, right) == set()
    shifted = replace(right, choose=lambda *given: (choose(*given)[0] * FACTOR, choose(*given)[1] + 1))
    assert found(expert_pairs.check_choice, shifted) == {
        "normed True",
        "normed False",
        "3 tokens: equal logits and NaN",
    }
    rough = replace(right, logits=lambda x, weight: right.logits(x, weight) * 1.0001)
    assert found(expert_pairs.check_choice, rough) == {"3 tokens: logits"}


def test_bf16_attention_passes_and_attention_to_too_few_tokens_fails(tmp_path: Path) -> None:
    setting = Bfloat16Setting(CPU, True, tmp_path)
    model, record = attention.QUICK_MODELS[0], Record()
    with torch.inference_mode():
        attention.check_attention(record, setting, model, "auto", 16, seed=0)
        assert all(finding.ok for finding in record.findings)
        _, sequences = list(attention.steps(setting, 0))[1]
        batch = attention.make_batch(sequences, 16, 0)
        inputs = attention.Inputs.draw(model, batch.num_tokens, setting)
        pool = attention.drawn((99, 1, 2, 2, 2, 16, 16), setting)
        backend = TorchAttention.for_model(model.config("bfloat16"), 16)
        whole = attention.attend(backend, inputs, pool, batch, UNSCALED, PLAIN).values
        shorter = replace(batch, context_lens=(batch.context_lens - 1).clamp(min=1))
        less = attention.attend(backend, inputs, pool, shorter, UNSCALED, PLAIN).values
    assert not attention.ATTENTION[torch.bfloat16].admit(Closeness.of(less, whole))


def test_each_distance_detects_errors_that_the_others_miss() -> None:
    torch.manual_seed(0)
    reference, limits = torch.randn(1000, 100), OPERATION[torch.bfloat16]
    scaled, other = Closeness.of(reference * FACTOR, reference), reference.clone()
    assert scaled.cosine > limits.cosine
    assert not limits.admit(scaled)
    other[5, 5] += 0.5
    one = Closeness.of(other, reference)
    assert one.error < limits.error
    assert not limits.admit(one)
    other[5, 5] = torch.nan
    assert not limits.admit(Closeness.of(other, reference))
    assert limits.admit(Closeness.of(reference.bfloat16(), reference))
    with pytest.raises(ValueError, match=r"the result has shape \[1000\]"):
        Closeness.of(reference[:, 0], reference)


def test_logits_and_tokens_of_another_model_are_found() -> None:
    torch.manual_seed(0)
    reference = [torch.randn(3, 320) for _ in range(24)]
    record = Record()
    compare_models(record, "same", [step.bfloat16().float() for step in reference], reference, share=1.0)
    assert [finding.ok for finding in record.findings] == [True, True]
    compare_models(record, "noisy", [step + torch.randn_like(step) for step in reference], reference, share=0.9)
    assert [finding.ok for finding in record.findings[2:]] == [False, False]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_recurrent_state_that_is_lost_is_found(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    answer = families.answer

    def on_device(engine: Engine, waves: families.Waves, tokens: dict[str, list[int]] | None) -> families.Answers:
        if is_lost and tokens is not None:
            monkeypatch.setattr(LayerStates, "write", lambda *_: None)
        return answer(engine, waves, tokens)

    monkeypatch.setattr(families, "answer", on_device)
    record = Record()
    with torch.inference_mode():
        families.check_family(record, setting, families.HANDED_OVER)
    names = ("logits", "greedy tokens", "scheduling")
    expected = [(f"qwen3.5: {name}", name == "scheduling" or not is_lost) for name in names]
    assert [(finding.case, finding.ok) for finding in record.findings] == expected


@pytest.mark.slow
def test_packed_weights_are_checked_again_in_the_same_directory(setting: Setting) -> None:
    record, gptq = Record(), next(fmt for fmt in packed.formats() if fmt.write is not None)
    for _ in range(2):
        packed.check_format(record, setting, packed.DENSE, gptq)
    assert [finding.ok for finding in record.findings] == [True] * 4


def test_outputs_may_differ_only_at_equally_probable_tokens() -> None:
    reference = {"a": Answer([1, 2], [{1: -0.1, 3: -3.0}, {2: -0.7, 4: -0.71}])}
    parted = {"a": Answer([1, 4], [{1: -0.1, 3: -3.0}, {4: -0.7, 2: -0.72}])}
    wrong = {"a": Answer([3, 2], [{3: -0.1, 1: -3.0}, {2: -0.7, 4: -0.71}])}
    record = Record()
    for name, answers in (("same", reference), ("parted", parted), ("wrong", wrong)):
        compare_answers(record, name, answers, reference)
    assert [finding.ok for finding in record.findings] == [True, True, False]


def test_a_stage_that_hangs_or_crashes_is_ended_and_reported(setting: Setting) -> None:
    hung = run_stage(stage_named("models"), setting, 0.2, Event())
    assert not hung["ok"]
    assert hung["error"] == "did not end within 0.2 s"
    crashed = run_stage(stage_named("ops"), replace(setting, device=torch.device("meta")), 60, Event())
    assert not crashed["ok"]
    assert crashed["error"] == "ended with 1"
    assert "Traceback" in crashed["log"]


def test_a_failing_check_is_a_finding_and_the_next_one_runs() -> None:
    record = Record()

    def missing() -> None:
        raise RuntimeError("a kernel is missing")

    record.attempt("first", missing)
    record.attempt("second", lambda: record.find("second", True, "done"))
    assert [(finding.case, finding.ok) for finding in record.findings] == [("first", False), ("second", True)]
    assert "RuntimeError: a kernel is missing" in record.findings[0].detail


def test_results_are_merged_by_stage(tmp_path: Path) -> None:
    path, machine = tmp_path / "gpu.json", describe_gpu(CPU)
    findings = [{"case": str(number), "ok": number > 0, "detail": ""} for number in range(100)]
    merge(path, machine, "ops", {"ok": True, "findings": findings})
    merge(path, machine, "models", {"ok": False, "findings": []})
    merge(path, machine, "models", {"ok": True, "findings": findings[1:3]})
    stages = json.loads(path.read_text())["stages"]
    assert {name: stage["ok"] for name, stage in stages.items()} == {"ops": True, "models": True}
    assert stages["ops"]["machine"]["host"]["num_cores"] >= 1
    assert (stages["ops"]["num_findings"], stages["ops"]["findings"]) == (100, findings[:1])  # the failed one of many
    assert stages["models"]["findings"] == findings[1:3]
