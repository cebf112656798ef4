"""Conversations with images, over a real router with a scripted worker: tokens, outputs, and what is refused."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image

from baton.offline.completions import Completions
from baton.offline.conversations import Conversations
from baton.offline.errors import RequestFailed
from baton.offline.images import LocalImages
from baton.offline.prompts import PromptReader
from baton.offline.requests import Requests
from baton.offline.sampling_params import SamplingParams
from baton.router.model_info import read_model_info
from baton.router.text.tokenizer import Tokenizer
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker
from tests.vision_checkpoints import make_served_vision_model

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = {"role": "user", "content": "hello"}
WITHOUT_FORMATS = {"tool_call_parser": "none", "reasoning_parser": "none"}  # as of an LLM's router


class Rig:
    """Conversations of a model that takes images, and its tokenizer."""

    def __init__(self, conversations: Conversations, pictures: Path) -> None:
        self.conversations = conversations
        self.pictures = pictures

    def user(self, *names: str) -> dict[str, Any]:
        """Return a message with images of the directory, which need not be there."""
        urls = [(self.pictures / name).as_uri() for name in names]
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        return {"role": "user", "content": [*parts, {"type": "text", "text": "what is this?"}]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    directory = make_served_vision_model(tmp_path_factory.mktemp("vision") / "model")
    pictures = tmp_path_factory.mktemp("pictures")
    for name, size in (("small.png", (56, 56)), ("wide.png", (140, 56))):
        Image.new("RGB", size, "red").save(pictures / name)
    (pictures / "damaged.png").write_bytes(b"no image")
    worker, tokenizer = ScriptedWorker(), Tokenizer(str(directory))
    worker.model = "model"
    async with running_router(worker, model=str(directory), **WITHOUT_FORMATS) as router:
        reader = PromptReader(tokenizer, read_model_info(str(directory), "model"), worker.max_model_len)
        requests = Requests(router.url, "key", lambda: None)
        yield Rig(Conversations(reader, LocalImages.of(pictures), requests), pictures)
    tokenizer.close()


@pytest.mark.slow
async def test_an_image_has_the_tokens_of_its_size(rig: Rig) -> None:
    chats = [[rig.user("small.png")], [TEXT], [rig.user("wide.png")], [rig.user("small.png", "wide.png")]]
    small, text, wide, both = await rig.conversations.read([{"messages": chat} for chat in chats])
    vision = rig.conversations.reader.model.vision
    assert vision is not None
    counts = [each.token_ids.count(vision.placeholder_id) for each in (small, text, wide, both)]
    assert counts == [4, 0, 10, 14]
    assert [each.chat is None for each in (small, text, wide, both)] == [False, True, False, False]
    assert small.text is not None
    assert small.text.count("<|image_pad|>") == 1


@pytest.mark.slow
async def test_an_output_has_all_fields(rig: Rig) -> None:
    body = {"messages": [rig.user("wide.png")], "add_generation_prompt": True, "chat_template_kwargs": {}}
    [prompt] = await rig.conversations.read([body])
    params = SamplingParams(n=2, temperature=1.0, max_tokens=6, logprobs=1, prompt_logprobs=1)
    tokenizer = rig.conversations.reader.tokenizer
    job = Completions("7", prompt, params, 5, rig.conversations.reader.max_model_len, tokenizer)
    [output] = await rig.conversations.requests.run([job], 1, lambda: None)
    assert (output.request_id, output.prompt_token_ids) == ("7", prompt.token_ids)
    assert output.prompt_logprobs is not None
    for completion in output.outputs:
        assert len(completion.token_ids) == 6
        assert completion.text == await tokenizer.decode(completion.token_ids, True, "")
        assert (completion.finish_reason, completion.stop_reason) == ("length", None)
        assert completion.logprobs is not None
        assert [token in each for token, each in zip(completion.token_ids, completion.logprobs, strict=True)] == [
            True
        ] * 6
    assert output.outputs[0].token_ids != output.outputs[1].token_ids


@pytest.mark.slow
async def test_the_first_conversation_that_cannot_be_served_is_named(rig: Rig) -> None:
    good = {"messages": [rig.user("small.png")]}
    invalid: list[tuple[dict[str, Any], str]] = [
        ({"messages": [rig.user("none.png")]}, "none.png is not a file"),
        ({"messages": [rig.user("small.png")], "tools": [{}]}, "tools do not work with images here"),
        ({"messages": [{**rig.user("small.png"), "role": "king"}]}, r"messages\[0\].role"),
        ({"messages": [rig.user("wide.png"), {"role": "user", "content": "word " * 240}]}, "exceed the context of 256"),
    ]
    for body, message in invalid:
        with pytest.raises(ValueError, match=f"conversation 2: .*{message}"):
            await rig.conversations.read([good, {"messages": [TEXT]}, body])
    with pytest.raises(RequestFailed, match="cannot be decoded") as failed:
        await rig.conversations.read([{"messages": [TEXT]}, good, {"messages": [rig.user("damaged.png")]}])
    assert failed.value.index == 2


async def test_a_model_without_images_refuses_them() -> None:
    bundled = str(Path(__file__).parents[3] / "baton" / "bundled_model")
    tokenizer = Tokenizer(bundled)
    reader = PromptReader(tokenizer, read_model_info(bundled, "bundled"), 64)
    requests = Requests("http://127.0.0.1:9", "key", lambda: None)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(ValueError, match="conversation 0: the model bundled takes no images"):
        await Conversations(reader, LocalImages(None), requests).read(
            [{"messages": [{"role": "user", "content": [picture]}]}]
        )
    tokenizer.close()
