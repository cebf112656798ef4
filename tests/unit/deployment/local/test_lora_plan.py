"""LoRA adapters in the plan of a cluster on one machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from baton.deployment.local.cluster_config import load_settings
from baton.deployment.local.cluster_plan import plan_cluster
from baton.router.adapters.module import LoraModule, read_module
from baton.router.config import RouterConfig
from baton.settings.values import OptionError
from tests.unit.deployment.local.test_cluster_config import CHECKPOINT, MACHINE, SOCKETS


def planned_router(**flags: object) -> RouterConfig:
    return plan_cluster(load_settings(None, flags), CHECKPOINT, MACHINE, SOCKETS).router


def test_router_and_workers_serve_adapters_from_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "adapter_config.json").touch()
    monkeypatch.chdir(tmp_path)
    flags = {"enable_lora": True, "max_loras": 2, "lora_dir": ".", "lora_modules": ("sql=sql",)}
    plan = plan_cluster(load_settings(None, flags), CHECKPOINT, MACHINE, SOCKETS)
    assert (plan.router.enable_lora, plan.router.lora_dir) == (True, str(tmp_path))
    assert list(map(read_module, plan.router.lora_modules)) == [LoraModule("sql", str(tmp_path / "sql"))]
    assert {(worker.engine.enable_lora, worker.engine.max_loras) for worker in plan.workers} == {(True, 2)}
    assert plan.router.adapters_dir == str(SOCKETS / "adapters")
    assert not planned_router().enable_lora


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"lora_modules": ("sql=/none",)}, "the adapter sql has no adapter_config.json in /none"),
        ({"lora_modules": ("sql",)}, "lora_modules: 'sql' is not NAME=PATH"),
        ({"lora_dir": "/none"}, "lora_dir: /none is not a directory"),
    ],
)
def test_adapters_that_do_not_exist_are_reported_before_anything_starts(flags: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        planned_router(enable_lora=True, **flags)


def test_workers_that_hand_over_agree_on_adapters(tmp_path: Path) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text("decode_engine: {enable_lora: true}")
    with pytest.raises(OptionError, match="enable_lora: False for prefill, True for decode"):
        load_settings(file, {})


def test_a_router_without_workers_of_its_own_serves_adapters(tmp_path: Path) -> None:
    settings = load_settings(None, {"enable_lora": True, "lora_dir": str(tmp_path)})
    settings = replace(settings, cluster=settings.cluster.with_workers({"prefill": 0, "decode": 0, "both": 0}))
    plan = plan_cluster(settings, CHECKPOINT, MACHINE)
    assert (plan.workers, plan.router.enable_lora, plan.router.lora_dir) == ((), True, str(tmp_path))
    assert plan.router.adapters_dir is None  # the registry has the list
