"""Cluster settings from a file and flags, and the plan that follows from them."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from baton.deployment.local.cluster_config import (
    ClusterConfig,
    ClusterSettings,
    load_settings,
)
from baton.deployment.local.cluster_plan import Checkpoint, ClusterPlan, plan_cluster
from baton.deployment.local.machine import Machine, this_machine
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import ModelConfig, MoEConfig
from baton.engine.delta_net import DeltaNetConfig
from baton.engine.kv.dtype import kv_bytes_per_token
from baton.engine.mla import MLAConfig
from baton.engine.rope import RopeConfig
from baton.router.config import RouterConfig
from baton.settings.config_file import load
from baton.settings.values import OptionError
from baton.worker.config import WorkerConfig
from scripts.option_tables import generated
from tests.unit.engine.perplexity import BUNDLED

DOCS = Path(__file__).parents[4] / "docs"
MACHINE = Machine(num_cores=8, memory_bytes=32 << 30)
MODEL = ModelConfig(
    architecture="Qwen3ForCausalLM",
    vocab_size=1000,
    hidden_size=1024,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=3072,
    rms_norm_eps=1e-6,
    rope=RopeConfig(theta=1e6, rotary_dim=128),
    max_model_len=40960,
    dtype="bfloat16",
)
CHECKPOINT = Checkpoint(Path("/models/large"), "large", MODEL)
SOCKETS = Path("/run/baton")


def settings(tmp_path: Path, text: str = "", **flags: object) -> ClusterSettings:
    file = tmp_path / "baton.yaml"
    file.write_text(text)
    return load_settings(file, flags)


def plan(settings: ClusterSettings, checkpoint: Checkpoint = CHECKPOINT) -> ClusterPlan:
    return plan_cluster(settings, checkpoint, MACHINE, SOCKETS)


def by_id(plan: ClusterPlan) -> dict[str, WorkerConfig]:
    return {worker.worker_id: worker for worker in plan.workers}


def test_by_default_one_prefill_and_one_decode_worker_share_the_machine(tmp_path: Path) -> None:
    planned = plan(settings(tmp_path))
    assert [worker.worker_id for worker in planned.workers] == ["prefill-0", "decode-0"]
    assert [worker.role for worker in planned.workers] == ["prefill", "decode"]
    assert {worker.engine.num_threads for worker in planned.workers} == {4}
    assert {worker.engine.kv_cache_memory_bytes for worker in planned.workers} == {2 << 30}
    assert planned.router.workers == ("unix:/run/baton/prefill-0", "unix:/run/baton/decode-0")
    assert planned.router.model_name == "large"
    assert planned.url == "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("flags", "roles"),
    [
        ({"colocated": 2}, ["both", "both"]),
        ({"colocated": 1, "decode": 1}, ["decode", "both"]),
        ({"prefill": 2, "decode": 3}, ["prefill"] * 2 + ["decode"] * 3),
        ({"prefill": 0}, ["decode"]),
    ],
)
def test_pool_sizes(tmp_path: Path, flags: dict[str, object], roles: list[str]) -> None:
    assert [worker.role for worker in plan(settings(tmp_path, "", **flags)).workers] == roles


@pytest.mark.parametrize("flags", [{"decode": 0}, {"colocated": 0, "decode": 0, "prefill": 3}])
def test_a_cluster_that_cannot_decode_is_refused(tmp_path: Path, flags: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="no worker decodes"):
        settings(tmp_path, "", **flags)


@pytest.mark.parametrize("flags", [{"prefill": 2, "colocated": 1}, {"prefill": 1, "colocated": 1, "decode": 0}])
def test_prefill_workers_without_decode_workers_are_refused(tmp_path: Path, flags: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=r"prefill: no worker would decode what these prefill.* set --decode"):
        settings(tmp_path, "", **flags)


def test_workers_of_one_machine_divide_into_groups() -> None:
    ClusterConfig(decode=4, expert_parallel=2, prefill_expert_parallel=3).check_groups()
    with pytest.raises(OptionError, match="decode: 3 workers do not divide into groups of 2"):
        ClusterConfig(decode=3, expert_parallel=2).check_groups()
    with pytest.raises(OptionError, match="prefill: 1 workers do not divide into groups of 2"):
        ClusterConfig(prefill=1, prefill_expert_parallel=2).check_groups()


def test_with_latency_targets_prices_decide_where_a_prompt_is_prefilled(tmp_path: Path) -> None:
    targets = "router: {target_ttft_ms: 500, target_tpot_ms: 50%s}"
    assert "local_prefill_below" not in settings(tmp_path, targets % "").router
    assert settings(tmp_path, targets % ", local_prefill_below: 9").router["local_prefill_below"] == 9
    assert settings(tmp_path).router["local_prefill_below"] == 64


def test_sections_of_the_file_reach_their_processes(tmp_path: Path) -> None:
    text = """
    model: /models/other
    port: 9000
    prefill: 2
    transport: tcp
    drain_timeout_s: 7
    otlp_traces_endpoint: http://collector:4318
    engine: {max-num-seqs: 8, kv_cache_memory_bytes: 256MiB}
    prefill_engine: {max_num_batched_tokens: 2048}
    decode_engine: {max_num_seqs: 16, num_threads: 3}
    router: {local_prefill_below: 0, policy: round_robin, trace_sample_ratio: 0.5}
    """
    loaded = settings(tmp_path, text, max_num_seqs=None, decode_kv_cache_memory_bytes=1 << 30)
    planned = plan(loaded)
    prefill, decode = by_id(planned)["prefill-1"], by_id(planned)["decode-0"]
    assert loaded.cluster.model == "/models/other"
    assert (prefill.engine.max_num_seqs, decode.engine.max_num_seqs) == (8, 16)
    assert (prefill.engine.step_tokens, decode.engine.step_tokens) == (2048, 256)
    assert (prefill.engine.kv_cache_memory_bytes, decode.engine.kv_cache_memory_bytes) == (256 << 20, 1 << 30)
    assert (prefill.engine.num_threads, decode.engine.num_threads) == (2, 3)
    assert {worker.transport for worker in planned.workers} == {"tcp"}
    assert (planned.router.policy, planned.router.local_prefill_below) == ("round_robin", 0)
    assert {planned.router.drain_timeout_s, *(worker.drain_timeout_s for worker in planned.workers)} == {7}
    endpoints = {planned.router.otlp_traces_endpoint, *(worker.otlp_traces_endpoint for worker in planned.workers)}
    assert endpoints == {"http://collector:4318"}
    assert planned.router.trace_sample_ratio == 0.5
    assert planned.router.port == 9000


def test_flags_take_precedence_over_every_section(tmp_path: Path) -> None:
    text = "port: 9000\nengine: {max_num_seqs: 8}\ndecode_engine: {max_num_seqs: 16}\nrouter: {max_inflight: 5}\n"
    planned = plan(settings(tmp_path, text, port=9001, max_num_seqs=4, max_inflight=6))
    assert {worker.engine.max_num_seqs for worker in planned.workers} == {4}
    assert (planned.router.port, planned.router.max_inflight) == (9001, 6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine: {max_num_seq: 1}", "engine.max_num_seq: unknown option; did you mean max_num_seqs?"),
        ("max_num_seqs: 1", "max_num_seqs: unknown option here; it belongs under engine"),
        ("policy: prefix", "policy: unknown option here; it belongs under router"),
        ("prefil: 1", "prefil: unknown option; did you mean prefill"),
        ("decode_engine: {model: x}", "decode_engine.model: unknown option"),
        ("router: {port: 1}", "router.port: unknown option here; it belongs under the top level"),
        ("router: {drain_timeout_s: 4}", "router.drain_timeout_s: unknown option here; it belongs under the top level"),
        ("router: {max_num_seqs: 4}", "router.max_num_seqs: unknown option here; it belongs under engine"),
        ("prefill_engine: {block_size: 32}", "block_size: 32 for prefill, 16 for decode, but it must be equal"),
        (
            "engine: {dtype: bfloat16}\ndecode_engine: {dtype: float32}",
            "dtype: bfloat16 for prefill, float32 for decode",
        ),
        ("prefill_engine: {kv_cache_dtype: int8}", "kv_cache_dtype: int8 for prefill, auto for decode"),
        (
            "prefill_engine: {quantization: int4}",
            "int4 for prefill, None for decode, but it must be equal for workers "
            "that hand over KV; allow_mixed_quantization permits it",
        ),
        ("prefill_engine: {allow_mixed_quantization: true}", "allow_mixed_quantization: True for prefill, False for"),
        ("engine: {kv_cache_dtype: fp4}", "kv_cache_dtype: 'fp4' is not allowed; it must be one of auto"),
        ("prefill: -1", "prefill: -1 is not allowed; it must be a whole number from 0 to 256"),
        ("engine: {kv_cache_memory_bytes: lots}", "engine.kv_cache_memory_bytes: 'lots' is not allowed"),
        ("transport: pigeon", "transport: 'pigeon' is not allowed; it must be one of auto"),
    ],
)
def test_an_invalid_file_is_refused_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(OptionError) as raised:
        settings(tmp_path, text)
    assert message in str(raised.value)


def test_sections_of_unused_pools_need_not_match(tmp_path: Path) -> None:
    text = "prefill: 0\nengine:\nprefill_engine: {block_size: 32}\n"
    assert by_id(plan(settings(tmp_path, text)))["decode-0"].engine.block_size == 16
    alike = "prefill_engine: {block_size: 32}\ndecode_engine: {block_size: 32}\n"
    assert {worker.engine.block_size for worker in plan(settings(tmp_path, alike)).workers} == {32}


def test_roles_may_have_different_quantizations_if_that_is_allowed(tmp_path: Path) -> None:
    text = "engine: {allow_mixed_quantization: true}\nprefill_engine: {quantization: int4}\n"
    workers = by_id(plan(settings(tmp_path, text)))
    assert [workers[name].engine.quantization for name in ("prefill-0", "decode-0")] == ["int4", None]


def test_a_context_longer_than_the_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="max_model_len: 40961 tokens exceed the checkpoint's context of 40960"):
        plan(settings(tmp_path, "", max_model_len=40961))


def test_a_kv_cache_dtype_that_the_model_does_not_support_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"'float32' .* in bfloat16, only auto, bfloat16, int8, int4, fp8"):
        plan(settings(tmp_path, "", kv_cache_dtype="float32"))
    planned = plan(settings(tmp_path, "", kv_cache_dtype="int8"))
    assert {worker.engine.kv_cache_dtype for worker in planned.workers} == {"int8"}
    assert all("--kv-cache-dtype=int8" in spec.argv for spec in planned.specs(tmp_path) if "router" not in spec.name)
    in_fp8 = plan(settings(tmp_path, "engine: {kv_cache_dtype: fp8}"))
    assert {worker.engine.kv_cache_dtype for worker in in_fp8.workers} == {"fp8"}
    two_names = "prefill_engine: {kv_cache_dtype: fp8}\ndecode_engine: {kv_cache_dtype: fp8_e4m3}"
    assert plan(settings(tmp_path, two_names)).workers == in_fp8.workers


def test_recurrent_layers_that_cannot_be_divided_are_refused(tmp_path: Path) -> None:
    net = DeltaNetConfig(layers=(0,), num_key_heads=6, num_value_heads=12, key_dim=128, value_dim=128, conv_size=4)
    checkpoint = replace(CHECKPOINT, config=replace(MODEL, recurrent=net, layers_without_attention=frozenset({0})))
    workers = plan(settings(tmp_path, "", tensor_parallel=2), checkpoint).workers
    assert {worker.engine.kv_shards for worker in workers} == {2}
    with pytest.raises(OptionError, match=r"cannot be divided into 4 shards, .*: linear_num_key_heads 6$"):
        plan(settings(tmp_path, "", tensor_parallel=2, prefill_tensor_parallel=4), checkpoint)


def test_ranks_that_cannot_divide_a_recurrent_models_attention_and_experts_are_refused(tmp_path: Path) -> None:
    net = DeltaNetConfig(layers=(0,), num_key_heads=8, num_value_heads=16, key_dim=128, value_dim=128, conv_size=4)
    model = replace(MODEL, recurrent=net, layers_without_attention=frozenset({0}))
    with pytest.raises(OptionError, match=r"divided among 16 ranks: vocab_size 1000$"):
        plan(settings(tmp_path, "", prefill_tensor_parallel=16), replace(CHECKPOINT, config=model))
    moe = MoEConfig(num_experts=6, num_experts_per_token=2, intermediate_size=75)
    mixture = replace(CHECKPOINT, config=replace(model, moe=moe))
    with pytest.raises(OptionError, match=r"divided among 2 ranks: intermediate size of an expert 75$"):
        plan(settings(tmp_path, "", tensor_parallel=2), mixture)
    whole_experts = settings(tmp_path, "", tensor_parallel=2, enable_expert_parallel=True)
    assert {worker.expert_parallel for worker in plan(whole_experts, mixture).workers} == {1, 2}


def test_the_default_kv_cache_size_is_bounded(tmp_path: Path) -> None:
    small = plan_cluster(settings(tmp_path), CHECKPOINT, Machine(1, 1 << 30))
    large = plan_cluster(settings(tmp_path), CHECKPOINT, Machine(1, 1 << 40))
    assert {worker.engine.kv_cache_memory_bytes for worker in small.workers} == {128 << 20}
    assert {worker.engine.kv_cache_memory_bytes for worker in large.workers} == {4 << 30}
    assert {worker.engine.num_threads for worker in small.workers} == {1}


def test_the_default_kv_cache_holds_at_most_a_full_batch(tmp_path: Path) -> None:
    short = settings(tmp_path, "", max_model_len=100, max_num_seqs=50)
    planned = plan_cluster(short, CHECKPOINT, Machine(1, 1 << 40))
    assert kv_bytes_per_token(MODEL) == 28 * 2 * 8 * 128 * 2
    assert {worker.engine.kv_cache_memory_bytes for worker in planned.workers} == {100 * 50 * 114688}
    mla = MLAConfig(kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    assert kv_bytes_per_token(replace(MODEL, mla=mla, dtype="float32")) == 28 * 576 * 4
    assert kv_bytes_per_token(MODEL, "int8") == 28 * 2 * 8 * (128 + 4)
    assert kv_bytes_per_token(replace(MODEL, mla=mla), "int8") == 28 * (576 + 4)
    in_int8 = settings(tmp_path, "", max_model_len=100, max_num_seqs=50, kv_cache_dtype="int8")
    planned = plan_cluster(in_int8, CHECKPOINT, Machine(1, 1 << 40))
    assert {worker.engine.kv_cache_memory_bytes for worker in planned.workers} == {100 * 50 * 59136}


def test_all_workers_run_the_command_whose_role_can_change(tmp_path: Path) -> None:
    specs = plan(settings(tmp_path, "", colocated=1, prefill=1, decode=1)).specs(tmp_path)
    assert [(spec.name, [word for word in spec.argv[3:] if not word.startswith("--")]) for spec in specs] == [
        ("router", ["baton.router"]),
        ("prefill-0", ["baton", "worker"]),
        ("decode-0", ["baton", "worker"]),
        ("both-0", ["baton", "worker"]),
    ]
    assert [spec.argv.count(f"--role={spec.name[:-2]}") for spec in specs[1:]] == [1, 1, 1]
    assert specs[1].env["OMP_NUM_THREADS"] == "2"
    assert specs[1].log_path == tmp_path / "prefill-0.log"
    assert "--worker-id=prefill-0" in specs[1].argv


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:8000"), ("::", "http://[::1]:8000"), ("10.0.0.7", "http://10.0.0.7:8000")],
)
def test_the_shown_url_is_reachable_from_this_machine(tmp_path: Path, host: str, url: str) -> None:
    assert plan(settings(tmp_path, "", host=host)).url == url


def test_a_containers_limits_bound_the_division(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert this_machine(tmp_path) == Machine(num_cores=1, memory_bytes=600_000)


def test_without_limits_the_whole_machine_is_divided(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("400000\n")
    machine = this_machine(tmp_path)
    assert machine.num_cores >= 1
    assert machine.memory_bytes > 1_000_000


def test_the_documented_files_are_valid(tmp_path: Path) -> None:
    page = (DOCS / "configuration.md").read_text()
    serve, worker, router = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    cluster = settings(tmp_path, serve)
    assert cluster.engine["decode"]["kv_cache_memory_bytes"] == 8 << 30
    file = tmp_path / "other.yaml"
    file.write_text(worker)
    assert load(WorkerConfig, file, {}).metrics_port == 9100
    file.write_text(router)
    assert load(RouterConfig, file, {}).workers == ("10.0.0.5:7000", "10.0.0.6:7000")


def test_option_tables_of_the_docs_are_current() -> None:
    page = (DOCS / "configuration.md").read_text()
    assert set(re.findall(r"<!-- options: (\w+) -->", page)) >= {"serve", "engine", "router"}
    assert page == generated(page), "run python scripts/option_tables.py"
    assert generated(page.replace("| `block_size` |", "| `size` |")) == page
    check = subprocess.run([sys.executable, "scripts/option_tables.py", "--check"], cwd=DOCS.parent, check=False)
    assert check.returncode == 0


def test_a_type_that_only_gpus_have_is_refused_if_cpus_take_part(tmp_path: Path) -> None:
    model = Path(shutil.copytree(BUNDLED, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    checkpoint = Checkpoint(model, "m", read_model_config(model, on_cpu=False))
    mixed = "decode_engine: {device: cuda}\nprefill_engine: {device: cpu}\n"
    with pytest.raises(OptionError, match=r"^dtype: float16 on GPUs is float32 on CPUs; set one that both have"):
        plan(settings(tmp_path, mixed), checkpoint)
    with pytest.raises(OptionError, match=r"^dtype: float16 on GPUs is float32 on CPUs"):
        plan(settings(tmp_path, mixed, dtype="float16"), checkpoint)
