"""Bodies of embedding requests: their inputs, tokens and options."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.engine.pooling.config import PoolingConfig
from baton.router.embeddings.request import MAX_INPUTS, EmbeddingRequest, input_name, read_inputs
from baton.router.embeddings.response import encoded, max_bytes
from baton.router.embeddings.tokens import InputTokenizer
from baton.router.errors import FieldError
from baton.router.text.tokenizer import Tokenizer
from tests.unit.router.rigs.running_router import MODEL
from tests.unit.router.tokenizer_variants import make_tokenizer

CONTEXT = 20
END = 2
POOLING = PoolingConfig(kind="last", normalizes=True, size=64)


@pytest.fixture(scope="module")
def with_end(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    """The bundled tokenizer with a post-processor that appends the end token, as Qwen3-Embedding's does."""
    end = make_tokenizer().id_to_token(END)
    template = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {end: {"id": end, "ids": [END], "tokens": [end]}},
    }
    directory = tmp_path_factory.mktemp("with-end")
    make_tokenizer(post_processor=template).save(str(directory / "tokenizer.json"))
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (directory / name).write_text((Path(MODEL) / name).read_text())
    tokenizer = Tokenizer(str(directory))
    yield tokenizer
    tokenizer.close()


def body(given: object = "text", **fields: object) -> EmbeddingRequest:
    return EmbeddingRequest.model_validate({"input": given, **fields})


async def tokens(tokenizer: Tokenizer, given: object, **fields: object) -> list[list[int]]:
    request = body(given, **fields)
    bounds = InputTokenizer(tokenizer, 4096, CONTEXT)
    return [list(each) for each in await bounds.tokens(request, read_inputs(request.input), "", "")]


async def test_texts_end_with_the_post_processors_token(with_end: Tokenizer) -> None:
    [first, second] = await tokens(with_end, ["the module", "a function of the module"])
    [bare] = await tokens(with_end, "the module", add_special_tokens=False)
    assert first == [*bare, END]
    assert second[-1] == END
    assert await tokens(with_end, [first, bare]) == [first, bare]  # token ids get none


@pytest.mark.parametrize("side", ["right", "left"])
async def test_truncation_keeps_special_tokens(with_end: Tokenizer, side: str) -> None:
    text = "the function returns a list of the modules"
    [whole] = await tokens(with_end, text)
    assert len(whole) > 6
    [short] = await tokens(with_end, text, truncate_prompt_tokens=5, truncation_side=side)
    assert short == ([*whole[:4], END] if side == "right" else whole[-5:])
    [ids] = await tokens(with_end, [whole], truncate_prompt_tokens=5, truncation_side=side)
    assert ids == (whole[:5] if side == "right" else whole[-5:])
    assert await tokens(with_end, text, truncate_prompt_tokens=20) == [whole]
    [most] = await tokens(with_end, "the function " * 50, truncate_prompt_tokens=-1)
    assert len(most) == CONTEXT
    assert most[-1] == END


@pytest.mark.parametrize(
    ("given", "fields", "field", "reason"),
    [
        (["a", "the function " * 50], {}, "input[1]", r"maximum context length is 20 tokens. However, input\[1\] has"),
        ("the function " * 50, {}, "input", "However, input has"),
        ([[1, 2], [5] * 21], {}, "input[1]", r"input\[1\] has 21 tokens"),
        (["a", ""], {}, "input[1]", r"input\[1\] is empty"),
        ([[1], []], {}, "input[1]", r"input\[1\] is empty"),
        ([1, 4096], {}, "input", "outside 0 to 4095"),
        ([1, -1], {}, "input", "outside 0 to 4095"),
        ([1, "a"], {}, "input", r"input\[1\] is 'a', but must be a token id"),
        (["a", 1], {}, "input[1]", "another type"),
        ([["a"]], {}, "input", r"input\[0\]\[0\] is 'a'"),
        ([], {}, "input", "empty"),
        (None, {}, "input", "must be a string"),
        ({"a": 1}, {}, "input", "must be a string"),
        (["a"] * (MAX_INPUTS + 1), {}, "input", "2049 inputs, over the limit of 2048"),
        ("a", {"truncate_prompt_tokens": 21}, "truncate_prompt_tokens", "must be -1 or from 1 to"),
        ("a " * 600_000, {"truncate_prompt_tokens": 5}, "input", "at most 1048576 can be truncated"),
        ("a", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "must be -1 or from 1 to"),
    ],
)
async def test_invalid_inputs_are_refused_by_name(
    with_end: Tokenizer, given: object, fields: dict[str, object], field: str, reason: str
) -> None:
    with pytest.raises(FieldError, match=reason) as raised:
        await tokens(with_end, given, **fields)
    assert raised.value.field == field


def test_names_of_inputs() -> None:
    assert [input_name(each, 0) for each in ("a", ["a"], [1, 2], [[1]])] == ["input", "input[0]", "input", "input[0]"]


def test_options_depend_on_the_pooling() -> None:
    assert body(normalize=False).params(POOLING).normalizes is False
    assert body(use_activation=False).params(POOLING).normalizes is False
    assert body().params(POOLING).normalizes is None
    assert body(dimensions=64).params(POOLING).dimensions == 64
    for fields in ({"dimensions": 32}, {"normalize": True, "use_activation": False}):
        with pytest.raises(FieldError):
            body(**fields).params(POOLING)


@pytest.mark.parametrize("is_base64", [False, True])
def test_the_size_of_a_response_is_bounded(is_base64: bool) -> None:
    numbers = bytes.fromhex("cdcc8cbd") * 1024  # -0.06875, of which JSON has many digits
    size = len(encoded([numbers] * 8, is_base64, "m", 8))
    assert max_bytes(8, 1024, is_base64) > 0.95 * size
    assert json.loads(encoded([numbers], False, "m", 3))["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
