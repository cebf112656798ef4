"""Loading, unloading and limits of adapters."""

from pathlib import Path

import pytest

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import (
    AdapterConflict,
    AdapterLimit,
    AdaptersDisabled,
    InvalidAdapter,
    UnknownAdapter,
)
from baton.engine.lora.info import AdapterInfo
from baton.engine.request import RequestStatus
from baton.settings.values import OptionError
from tests.adapters import make_adapter
from tests.unit.engine.lora.lora_rig import lora_engine, random_tokens, request, run

PROMPT = random_tokens(20)


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return lora_engine(model, max_loras=2, max_cpu_loras=3)


@pytest.fixture(autouse=True)
def no_adapters(engine: Engine) -> None:
    for info in engine.adapters.infos():
        engine.adapters.unload(info.name)


def test_a_loaded_adapter_is_described(engine: Engine, model: Path, adapters: dict[str, Path]) -> None:
    info = engine.adapters.load("a", adapters["attention"])
    assert info == engine.adapters.get("a") == engine.adapters.infos()[0]
    file_bytes = (adapters["attention"] / "adapter_model.safetensors").stat().st_size
    assert info == AdapterInfo("a", info.digest, 8, info.num_bytes, str(model), ("q_proj", "v_proj"))
    assert 0 < file_bytes - info.num_bytes < 4096
    assert len(bytes.fromhex(info.digest)) == 16
    assert engine.stats().resident_adapters == ["a"]
    assert engine.adapters.get("b") is None


def test_digests_are_of_the_contents(engine: Engine, model: Path, adapters: dict[str, Path], tmp_path: Path) -> None:
    first = engine.adapters.load("a", adapters["down"])
    assert engine.adapters.load("b", adapters["down"]).digest == first.digest
    same = make_adapter(model, tmp_path / "same", ["down_proj"], rank=3, seed=3, base_model_name_or_path="elsewhere")
    scaled = make_adapter(model, tmp_path / "scaled", ["down_proj"], rank=3, seed=3, lora_alpha=7)
    assert engine.adapters.read("c", same).info.digest == first.digest
    assert engine.adapters.read("c", scaled).info.digest != first.digest
    rounded = lora_engine(model, lora_dtype="bfloat16").adapters.load("a", adapters["down"])
    assert rounded.digest != first.digest  # it computes other KV


def test_a_name_is_loaded_once(engine: Engine, adapters: dict[str, Path]) -> None:
    removed: list[int] = []
    engine.adapters.on_removed = removed.append
    first = engine.adapters.load("a", adapters["all"])
    assert engine.adapters.load("a", adapters["all"]) == first
    assert len(removed) == 1
    with pytest.raises(AdapterConflict, match="a LoRA adapter 'a' with other contents is loaded; unload it first"):
        engine.adapters.load("a", adapters["down"])
    assert len(removed) == 2
    engine.adapters.unload("a")
    assert len(removed) == 3
    with pytest.raises(UnknownAdapter, match="no LoRA adapter 'a' is loaded"):
        engine.adapters.unload("a")


def test_registered_adapters_are_bounded_until_requests_end(
    engine: Engine, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.adapters, "_max_registered", 3)
    for name in ("a", "b", "c"):
        engine.adapters.load(name, adapters["all"])
    with pytest.raises(AdapterLimit, match="3 LoRA adapters are loaded or still in use, which is the maximum"):
        engine.adapters.load("d", adapters["all"])
    running = request("r", PROMPT, "a")
    engine.add(running)
    engine.run(engine.schedule())
    engine.adapters.unload("a")
    with pytest.raises(AdapterLimit):  # the request keeps it
        engine.adapters.load("d", adapters["all"])
    engine.abort(running.request_id)
    engine.adapters.load("d", adapters["all"])


def test_requests_for_unknown_adapters_are_refused(engine: Engine, adapters: dict[str, Path]) -> None:
    engine.adapters.load("a", adapters["all"])
    with pytest.raises(UnknownAdapter, match="no LoRA adapter 'b' is loaded"):
        engine.add(request("r", PROMPT, "b"))
    with pytest.raises(UnknownAdapter, match=r"'a' is loaded with the contents \w{32}, but the request needs '00'"):
        engine.add(request("r", PROMPT, "a", adapter_digest="00"))
    assert not engine.has_work
    run(engine, request("r", PROMPT, "a", adapter_digest=engine.adapters.infos()[0].digest))


@pytest.mark.parametrize("name", ["", "a\n", "x" * 257])
def test_names_are_checked(engine: Engine, adapters: dict[str, Path], name: str) -> None:
    with pytest.raises(InvalidAdapter, match="must have 1 to 256 printable characters"):
        engine.adapters.load(name, adapters["all"])


def test_a_batch_has_at_most_max_loras_adapters(engine: Engine, adapters: dict[str, Path]) -> None:
    for name in adapters:
        engine.adapters.load(name, adapters[name])
    names = ("all", "attention", "down", "all", None)
    requests = [request(f"{place}", PROMPT, name) for place, name in enumerate(names)]
    for each in requests:
        engine.add(each)
    engine.run(engine.schedule())
    running = [each.request_id for each in requests if each.status is RequestStatus.RUNNING]
    assert running == ["0", "1", "4"]  # "3" would keep "2" waiting; the base model needs no place
    run(engine)
    assert all(each.num_output_tokens == 12 for each in requests)


def test_waiting_adapters_do_not_starve(engine: Engine, adapters: dict[str, Path]) -> None:
    """However many requests for the batch's adapters follow, one for another adapter is served in its turn."""
    for name in adapters:
        engine.adapters.load(name, adapters[name])
    late = request("late", PROMPT, "down")
    engine.add(request("first", PROMPT, "all"))
    engine.add(request("second", PROMPT, "attention"))
    engine.add(late)
    for step in range(30):
        engine.add(request(f"more-{step}", PROMPT, "all"))
        engine.run(engine.schedule())
    assert late.status is RequestStatus.FINISHED
    run(engine)


def test_engines_without_adapters_refuse_them(model: Path, adapters: dict[str, Path]) -> None:
    engine = lora_engine(model, enable_lora=False)
    with pytest.raises(AdaptersDisabled, match="start it with --enable-lora"):
        engine.adapters.load("a", adapters["all"])
    with pytest.raises(UnknownAdapter):
        engine.add(request("r", PROMPT, "a"))


def test_limits_are_checked() -> None:
    with pytest.raises(OptionError, match=r"max_cpu_loras is 4, but must be at least max_loras \(8\)"):
        EngineConfig(model="m", device="cpu", max_cpu_loras=4)
