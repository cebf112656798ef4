"""Pins through the real router and simulated workers, whose blocks and schedulers are real."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from baton.deployment.local.ports import free_ports
from baton.router.config import RouterConfig
from baton.router.pins.placement import Placement
from baton.settings.values import OptionError
from baton.simulation.workers.app import simulated_workers
from baton.simulation.workers.worker_config import SimulatedWorkerConfig
from tests.unit.router.api_keys import TestKeys, bearer
from tests.unit.router.pins.pins_rig import PINS, PREFIX, SPEC, complete, headers_of, held, pin, pins, serving, until
from tests.unit.router.rigs.running_router import running_router, wait_workers


async def test_a_pinned_prefix_is_cached_after_any_number_of_other_prompts() -> None:
    async with serving("prefill", "decode") as (router, (prefill, decode)):
        made = await pin(router, id="system", ttl_seconds=60, plan="remote")
        assert made.status_code == 200, made.text
        content = made.json()
        assert 50 < content.pop("expires_at") - time.time() <= 60
        assert content == {
            "id": "system", "object": "cache.pin", "model": "bundled_model", "tokens": 96, "blocks": 6, "bytes": 6000,
            "workers": ["prefill-0"],
        }  # fmt: skip
        assert (held(prefill), held(decode)) == (6, 0)
        for number in range(6):
            await complete(router, [500 + number] * 700, plan="remote")
        assert await complete(router, [*PREFIX, 1, 2, 3], plan="remote") == 96
        (listed,) = await pins(router)
        assert listed["id"] == "system"
        deleted = await router.http.delete(f"{PINS}/system")
        assert deleted.json() == {"id": "system", "object": "cache.pin", "deleted": True}
        assert held(prefill) == 0
        assert await pins(router) == []
        assert (await router.http.delete(f"{PINS}/system")).status_code == 404


async def test_texts_and_messages_are_pinned_as_requests_begin_with_them() -> None:
    async with serving("both") as (router, (worker,)):
        system = {"role": "system", "content": "You answer in verse. " * 20}
        assert (await pin(router, prompt=None, messages=[system])).status_code == 200
        assert (await pin(router, prompt="Once upon a time, " * 20)).status_code == 200
        body = {"messages": [system, {"role": "user", "content": "Hello"}], "max_tokens": 2}
        answer = (await router.http.post("/v1/chat/completions", json=body)).json()
        chat, text = await pins(router)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == chat["tokens"] > 0
        assert text["tokens"] > 0
        assert held(worker) == chat["blocks"] + text["blocks"]


async def test_a_pin_expires() -> None:
    async with serving("both") as (router, (worker,)):
        assert (await pin(router, ttl_seconds=1)).status_code == 200
        assert held(worker) == 6

        async def is_over() -> bool:
            return held(worker) == 0 and await pins(router) == []

        await until(is_over)


async def test_a_lost_pin_is_made_elsewhere_within_its_time() -> None:
    async with serving("both", "both") as (router, workers):
        (holder,) = (await pin(router, id="a", ttl_seconds=600)).json()["workers"]
        first, second = sorted(workers, key=lambda worker: worker.config.worker_id != holder)
        await first.stop()

        async def is_moved() -> bool:
            found = await pins(router)
            return [each["workers"] for each in found] == [[second.config.worker_id]]

        await until(is_moved)
        assert held(second) == 6
        assert await complete(router, [*PREFIX, 1]) == 96


async def test_a_pin_that_a_worker_dropped_is_made_elsewhere() -> None:
    async with serving("both", "both") as (router, workers):
        (holder,) = (await pin(router, id="a")).json()["workers"]
        first, second = sorted(workers, key=lambda worker: worker.config.worker_id != holder)
        assert first.core.blocks.prefix_pins.drop_oldest()

        async def is_moved() -> bool:
            return held(second) == 6

        await until(is_moved)

        async def is_reported() -> bool:
            states = (await router.http.get("/workers")).json()["workers"]
            loads = {each["worker_id"]: each["load"] for each in states}
            return bool(loads[second.config.worker_id]["num_pinned_blocks"] == 6)

        await until(is_reported)


async def test_another_worker_takes_what_the_first_has_no_room_for() -> None:
    async with serving("both", "both") as (router, (first, second)):
        for number in range(8):  # 6 blocks each; a worker's share is 25 of its 100
            made = await pin(router, prompt=[600 + number] * 100)
            assert made.status_code == 200, made.text
        assert (held(first), held(second)) == (24, 24)
        refused = await pin(router, prompt=[700] * 100)
        assert refused.status_code == 429
        assert "only 1 of the 25 for all pins on the worker are free" in refused.json()["error"]["message"]
        assert len(await pins(router)) == 8


async def test_tenants_neither_see_nor_use_each_others_pins(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    one, two = keys.add("one"), keys.add("two", max_pinned_fraction=0.05)
    async with serving("both", api_keys_file=str(keys.path)) as (router, (worker,)):
        assert (await pin(router, one, id="a")).status_code == 200
        assert await pins(router, two) == []
        assert (await router.http.delete(f"{PINS}/a", headers=bearer(two))).status_code == 404
        assert await complete(router, [*PREFIX, 1], two) == 0
        assert await complete(router, [*PREFIX, 1], one) == 96
        refused = await pin(router, two, id="a")
        assert refused.status_code == 429
        assert "only 5 of the 5 for pins of one key" in refused.json()["error"]["message"]
        assert (await pin(router, two, id="a", prompt=PREFIX[:80])).status_code == 200
        assert held(worker) == 11
        assert len(await pins(router, one)) == len(await pins(router, two)) == 1
        assert (await router.http.get(PINS)).status_code == 401


async def test_invalid_pins_are_refused() -> None:
    invalid: list[tuple[dict[str, Any], str]] = [
        ({"prompt": [1, 2, 3]}, "a length of 3, but whole KV blocks are pinned, of 16"),
        ({"prompt": None}, "prompt or messages is required"),
        ({"messages": [{"role": "user", "content": "a"}]}, "must not both be given"),
        ({"prompt": [1, "a"]}, "prompt[1] is 'a', but must be a token id"),
        ({"id": "a b"}, "id"),
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"ttl_seconds": 1e9}, "ttl_seconds"),
        ({"prompt": [5] * 5000}, "maximum context length"),
    ]
    async with serving("both") as (router, (worker,)):
        for fields, text in invalid:
            refused = await pin(router, **fields)
            assert refused.status_code == 400, fields
            assert text in refused.json()["error"]["message"]
        assert held(worker) == 0


async def test_routers_agree_on_pins_through_the_workers() -> None:
    async with serving("both") as (router, (worker,)), running_router(workers=(worker.address,)) as other:
        await wait_workers(other.http, 1)
        assert (await pin(router, id="a")).status_code == 200
        assert [each["id"] for each in await pins(other)] == ["a"]
        assert (await other.http.delete(f"{PINS}/a")).status_code == 200

        async def is_forgotten() -> bool:  # by the router that would otherwise make it anew
            return await pins(router) == []

        await until(is_forgotten)
        assert held(worker) == 0
        assert (await pin(router, id="a")).status_code == 200
        assert held(worker) == 6


async def test_the_servers_prefixes_are_pinned_on_all_workers_that_compute_prompts(tmp_path: Path) -> None:
    file = tmp_path / "system.txt"
    file.write_text("You answer in verse. " * 40)
    options = {"pin_prefix": (str(file),), "shared_cache": True, "api_key": ("sk-a",)}
    async with serving("prefill", "prefill", "decode", **options) as (router, workers):

        async def are_pinned() -> bool:
            return held(workers[0]) == held(workers[1]) > 0

        async def only_decodes() -> bool:  # it computes prompts until the others are there
            return held(workers[2]) == 0

        await until(are_pinned)
        await until(only_decodes)
        assert await pins(router, "sk-a") == []  # they belong to the server
        assert workers[0].core.blocks.prefix_pins.drop_oldest()
        workers[0].core.blocks.prefix_pins._rests_until_s = 0.0
        await until(are_pinned)
        body = {"prompt": file.read_text() + "Why?", "max_tokens": 2}
        headers = headers_of("sk-a", "remote")
        answer = (await router.http.post("/v1/completions", json=body, headers=headers)).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_the_router_is_ready_once_its_prefixes_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the first request would compute the prefix, although the server has started."""
    may_place, place_at = asyncio.Event(), Placement.place_at

    async def place_later(self: Placement, *args: Any) -> None:
        await may_place.wait()
        await place_at(self, *args)

    monkeypatch.setattr(Placement, "place_at", place_later)
    file = tmp_path / "system.txt"
    file.write_text("You answer in verse. " * 40)
    async with serving("both", pin_prefix=(str(file),)) as (router, (worker,)):
        refused = await router.http.get("/ready")
        assert refused.status_code == 503
        assert "computing the prefixes of pin_prefix" in refused.text
        may_place.set()

        async def is_ready() -> bool:
            return (await router.http.get("/ready")).status_code == 200

        await until(is_ready)
        assert held(worker) > 0
        body = {"prompt": file.read_text() + "Why?", "max_tokens": 2}
        answer = (await router.http.post("/v1/completions", json=body)).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_a_ready_router_stays_ready_while_a_later_worker_computes_the_prefixes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_place, place_at = asyncio.Event(), Placement.place_at
    may_place.set()

    async def place_later(self: Placement, *args: Any) -> None:
        await may_place.wait()
        await place_at(self, *args)

    monkeypatch.setattr(Placement, "place_at", place_later)
    file = tmp_path / "system.txt"
    file.write_text("You answer in verse. " * 40)
    [port] = free_ports("127.0.0.1", 1)
    first, second = (
        SimulatedWorkerConfig(worker_id=name, role="both", model="bundled_model", spec=SPEC, port=port)
        for name, port in (("first", 0), ("second", port))
    )
    async with simulated_workers([first]) as (worker,):
        addresses = (worker.address, f"127.0.0.1:{port}")
        async with running_router(workers=addresses, pin_prefix=(str(file),)) as router:

            async def is_ready() -> bool:
                return (await router.http.get("/ready")).status_code == 200

            await until(is_ready)
            may_place.clear()
            async with simulated_workers([second]) as (later,):
                await wait_workers(router.http, 2)
                assert await is_ready()
                assert held(later) == 0
                may_place.set()

                async def is_held() -> bool:
                    return held(later) > 0

                await until(is_held)


async def test_prefix_files_that_cannot_be_pinned_stop_the_router(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_text("word " * 100_000)
    (tmp_path / "text.json").write_text("You are")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "timed.json").write_text('{"prompt": "You are", "ttl_seconds": 60}')
    (tmp_path / "both.json").write_text('{"prompt": "You are", "messages": [{"role": "system", "content": "You"}]}')
    url = "data:image/png;base64,aaaa"
    content = [{"type": "image_url", "image_url": {"url": url}}]
    (tmp_path / "image.json").write_text(json.dumps({"messages": [{"role": "user", "content": content}]}))
    for name, text in (
        ("none", "No such file"),
        ("empty", "is empty"),
        ("binary", "not UTF-8"),
        ("long", "context"),
        ("text.json", "unexpected character"),
        ("list.json", "the file: Input should be"),
        ("timed.json", "ttl_seconds is not used here; the file may have add_special_tokens, chat_template_kwargs, "),
        ("both.json", "prompt and messages must not both be given"),
        ("image.json", "is an image, but the model bundled_model takes no images"),
    ):
        with pytest.raises(OptionError, match=rf"pin_prefix: .*{text}"):
            async with running_router(pin_prefix=(str(tmp_path / name),)):
                pass
    with pytest.raises(OptionError, match="pin_prefix: API keys share no cached prompts"):
        RouterConfig(model="m", api_key=("a",), pin_prefix=("a.txt",))


async def test_caches_are_cleared_by_admins_and_keep_what_is_pinned(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    user, admin = keys.add("user"), keys.add("admin", admin=True)
    reset = "/reset_prefix_cache"
    async with serving("both", api_keys_file=str(keys.path)) as (router, (worker,)):
        assert (await pin(router, user, prompt=PREFIX[:48])).status_code == 200
        await complete(router, [*PREFIX, 1], user)
        refused = await router.http.post(reset, headers=bearer(user))
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
        assert (await router.http.post(reset)).status_code == 401
        unknown = await router.http.post(reset, params={"model": "x"}, headers=bearer(admin))
        assert unknown.status_code == 404
        cleared = await router.http.post(reset, headers=bearer(admin))
        assert cleared.json() == {"object": "cache.clear", "blocks": {"both-0": 3}}
        assert await complete(router, [*PREFIX, 1], user) == 48
        assert held(worker) == 3
