"""Adapters leave memory to make room for others, and are read again, without an effect on outputs."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from baton.engine.engine import Engine
from baton.engine.errors import UnknownAdapter
from baton.engine.loop import EngineLoop
from baton.engine.lora.memory import AdapterMemory
from baton.engine.lora.registered import RegisteredAdapter
from baton.engine.request import Request, RequestStatus
from tests.adapters import make_adapter
from tests.unit.engine.lora.lora_rig import GREEDY, lora_engine, random_tokens, request, run

NUM_ADAPTERS = 40
PROMPT = random_tokens(24)
SHORT = replace(GREEDY, max_tokens=4)


@pytest.fixture(scope="module")
def many(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("many")
    return {
        f"{seed}": make_adapter(model, directory / f"{seed}", ["q_proj", "down_proj"], seed=seed)
        for seed in range(NUM_ADAPTERS)
    }


@pytest.fixture(scope="module")
def expected(model: Path, many: dict[str, Path]) -> dict[str, list[int]]:
    """Tokens with all adapters in memory."""
    engine = with_all(model, many, max_cpu_loras=NUM_ADAPTERS)
    outputs = dict(run(engine, *(request(name, PROMPT, name, SHORT) for name in many)))
    assert len({tuple(each) for each in outputs.values()}) > NUM_ADAPTERS * 0.9
    return outputs


@pytest.fixture
def engine(model: Path, adapters: dict[str, Path]) -> Engine:
    """An engine with three adapters, of which two are in memory, and one in the batch."""
    return with_all(model, adapters, max_loras=1, max_cpu_loras=2)


def with_all(model: Path, adapters: dict[str, Path], **options: object) -> Engine:
    engine = lora_engine(model, **({"max_loras": 2} | options))
    for name, path in adapters.items():
        engine.adapters.load(name, path)
    return engine


def step(engine: Engine) -> None:
    engine.run(engine.schedule())
    engine.check_integrity()


@pytest.mark.parametrize("all_at_once", [False, True])
def test_many_adapters_in_the_memory_of_few(
    model: Path, many: dict[str, Path], expected: dict[str, list[int]], all_at_once: bool
) -> None:
    """Popularity follows Zipf's law; the memory's limit is checked after each step."""
    engine = with_all(model, many, max_cpu_loras=4)
    assert [each.name for each in engine.adapters.infos()] == sorted(many)
    weights = [1 / (1 + place) for place in range(NUM_ADAPTERS)]
    names = random.Random(0).choices(list(many), weights, k=60) + list(many)
    requests = [request(f"{place}", PROMPT, name, SHORT) for place, name in enumerate(names)]
    waves = [requests] if all_at_once else [requests[start : start + 5] for start in range(0, len(requests), 5)]
    for wave in waves:
        run(engine, *wave)
    assert [each.token_ids[len(PROMPT) :] for each in requests] == [expected[name] for name in names]
    assert len(engine.adapters.resident()) == len(engine.adapters.resident_numbers()) == 4


def test_the_least_popular_adapter_leaves_memory(engine: Engine) -> None:
    assert engine.adapters.resident() == ["attention", "down"]
    for place, name in enumerate(("attention", "attention", "down", "all")):
        run(engine, request(f"{place}", PROMPT, name, SHORT))
    assert engine.adapters.resident() == ["all", "attention"]
    assert engine.adapters.load_s > 0


def test_older_uses_count_less() -> None:
    memory = AdapterMemory(2)
    for number in (1, 2):
        memory.put(number, 10 * number)
    for number, count in ((1, 40), (2, 8)):
        for _ in range(count):
            assert memory.use(number) == 10 * number
    assert memory.victim(lambda _: True) == 2
    for _ in range(40):
        memory.use(2)
    assert memory.victim(lambda _: True) == 1
    assert memory.victim(lambda number: number != 1) == 2
    memory.forget(2)
    assert memory.victim(lambda _: True) == 2
    assert AdapterMemory(1).victim(lambda _: True) is None


def test_popular_adapters_are_mostly_in_memory() -> None:
    memory, hits = AdapterMemory(16), 0
    names = random.Random(0).choices(range(200), [1 / (1 + place) for place in range(200)], k=4000)
    for name in names:
        if name in memory:
            hits += 1
        else:
            if not memory.has_room:
                memory.remove(memory.victim(lambda _: True) or 0)
            memory.put(name, name)
        memory.use(name)
    assert hits > 0.5 * len(names)  # the 16 most popular ones are 0.57


def test_adapters_of_requests_in_the_batch_stay(engine: Engine, adapters: dict[str, Path]) -> None:
    running = request("running", PROMPT, "down")
    engine.add(running)
    step(engine)
    for name in ("all", "attention", "copy"):
        engine.adapters.load(name, adapters["all" if name == "copy" else name])
        engine.add(request(name, PROMPT, name, SHORT))
        step(engine)
        assert "down" in engine.adapters.resident()
    engine.adapters.unload("copy")  # its request waits, and needs it later
    run(engine)
    assert running.num_output_tokens == GREEDY.max_tokens
    assert len(engine.adapters.infos()) == 3


def test_adapters_are_registered_if_those_in_memory_are_all_in_use(model: Path, adapters: dict[str, Path]) -> None:
    engine = with_all(model, {"down": adapters["down"]}, max_loras=1, max_cpu_loras=1)
    engine.add(request("running", PROMPT, "down"))
    step(engine)
    engine.adapters.load("all", adapters["all"])
    assert engine.adapters.resident() == ["down"]
    outputs = run(engine, request("next", PROMPT, "all", SHORT))
    assert engine.adapters.resident() == ["all"]
    assert outputs == run(with_all(model, adapters), request("next", PROMPT, "all", SHORT))


def test_other_requests_go_on_while_an_adapter_is_read(engine: Engine) -> None:
    wanted: list[RegisteredAdapter] = []
    engine.adapters.reader = wanted.append
    waiting, base, later = (
        request(name, PROMPT, adapter, SHORT)
        for name, adapter in (("waiting", "all"), ("base", None), ("later", "all"))
    )
    for each in (waiting, base, later):
        engine.add(each)
    while base.finish_reason is None:
        step(engine)
    assert [each.info.name for each in wanted] == ["all"], "it is read once"
    assert waiting.status is later.status is RequestStatus.WAITING
    assert not engine.schedule().requests
    engine.adapters.provide(wanted[0].number, engine.adapters.read("all", wanted[0].path))
    run(engine)
    assert waiting.token_ids == later.token_ids
    assert waiting.num_output_tokens == SHORT.max_tokens


def test_an_aborted_request_leaves_its_place_while_its_adapter_is_read(engine: Engine) -> None:
    wanted: list[RegisteredAdapter] = []
    engine.adapters.reader = wanted.append
    aborted = request("aborted", PROMPT, "all", SHORT)
    engine.add(aborted)
    step(engine)
    engine.abort(aborted.request_id)
    run(engine, request("next", PROMPT, "down", SHORT))
    engine.adapters.unload("all")
    engine.adapters.provide(wanted[0].number, engine.adapters.read("all", wanted[0].path))
    engine.check_integrity()
    assert engine.adapters.resident() == ["down"]
    assert len(engine.adapters.resident_numbers()) == 1


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_changed_files_end_requests_with_the_reason(
    engine: Engine, adapters: dict[str, Path], tmp_path: Path, change: str
) -> None:
    path = copytree(adapters["down"], tmp_path / "down")
    engine.adapters.load("changing", path)
    run(engine, request("1", PROMPT, "all", SHORT), request("2", PROMPT, "down", SHORT))
    assert "changing" not in engine.adapters.resident()
    rmtree(path)
    if change == "replaced":
        copytree(adapters["attention"], path)
    failed, other = request("failed", PROMPT, "changing", SHORT), request("other", PROMPT, "down", SHORT)
    engine.add(failed)
    engine.add(other)
    outputs = []
    while engine.has_work:
        outputs += engine.run(engine.schedule()).outputs
        engine.check_integrity()
    [error] = [each.error for each in outputs if each.error is not None]
    assert isinstance(error, UnknownAdapter)
    reason = {
        "replaced": f"in {path} have changed since it was loaded (digest",
        "deleted": f"'changing' has left memory, and cannot be read again: {path}/adapter_config.json does not exist",
    }[change]
    assert reason in str(error)
    assert other.num_output_tokens == SHORT.max_tokens
    with pytest.raises(UnknownAdapter, match="no LoRA adapter 'changing' is loaded"):
        engine.add(request("again", PROMPT, "changing", SHORT))
    if change == "replaced":  # its new contents are another adapter
        engine.adapters.load("changing", path)
        assert (
            run(engine, request("new", PROMPT, "changing", SHORT))["new"]
            == run(engine, request("same", PROMPT, "attention", SHORT))["same"]
        )


def test_preempted_requests_keep_their_adapters_in_memory(model: Path, many: dict[str, Path], tmp_path: Path) -> None:
    """Their files are gone, so that reading them again would fail."""
    paths = {name: copytree(many[name], tmp_path / name) for name in ("0", "1", "2")}
    sampling = replace(GREEDY, max_tokens=60)
    whole = with_all(model, paths)
    expected = [run(whole, request(name, PROMPT, name, sampling))[name] for name in paths]
    small = with_all(model, paths, max_loras=3, max_cpu_loras=3, kv_cache_memory_bytes=15 * 16 * 3 * 2 * 2 * 16 * 4)
    requests = [request(name, PROMPT, name, sampling) for name in paths]
    for place, each in enumerate(requests):
        small.add(each)
        rmtree(paths[f"{place}"])
    run(small)
    assert small.stats().num_preemptions > 0
    assert [each.token_ids[len(PROMPT) :] for each in requests] == expected


@pytest.fixture
def loop(engine: Engine) -> Iterator[EngineLoop]:
    loop = EngineLoop(engine, lambda _: None, lambda _: None)
    loop.start()
    yield loop
    loop.stop()


def test_the_engines_thread_reads_no_files(loop: EngineLoop, engine: Engine) -> None:
    requests: list[Request] = [request(name, PROMPT, name, SHORT) for name in ("all", "attention", "down")]
    for each in requests:
        loop.call(lambda engine, each=each: engine.add(each)).result()
    while loop.call(lambda engine: engine.has_work).result():
        pass
    assert all(each.num_output_tokens == SHORT.max_tokens for each in requests)
    loop.call(Engine.check_integrity).result()
