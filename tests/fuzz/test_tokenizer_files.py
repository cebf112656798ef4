"""Damaged tokenizers and chat templates: they encode, or are refused with an error that names file and problem."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer

from baton.engine.checkpoint.token_bytes import byte_of_character
from baton.engine.errors import InvalidCheckpoint, InvalidRequest
from baton.router.text.chat_template import Message
from baton.router.text.tokenizer import Tokenizer
from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.grpc.mutations import damaged_bytes, damaged_json, json_values, odd_texts
from tests.unit.router.text.test_tokenizer import byte_fallback_tokenizer

TEXTS = ["", "hello world", "naïve 🎉\n\t<|end|> 12", "\0", "日本"]
MAX_TEXT = 3000
CONFIG: dict[str, Any] = {
    "bos_token": "<|end|>", "eos_token": "<|end|>", "model_max_length": 64,
    "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
    "added_tokens_decoder": {"300": {"content": "<|end|>", "special": True}},
}  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message.content | trim }}{{ eos_token }}\n{% endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif %}{{ messages | tojson }}"
)
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__['os'].environ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ namespace.__init__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{{ strftime_now.__globals__ }}",
    "{% for i in range(99999999) %}{% endfor %}",
]


def byte_level_tokenizer() -> FastTokenizer:
    """Build a byte-level tokenizer with every section that a tokenizer.json may have."""
    vocabulary = byte_of_character()
    tokenizer = FastTokenizer(models.BPE({**vocabulary, "he": 256, "ll": 257}, [("h", "e"), ("l", "l")]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace("\t", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|end|> $A", pair=None, special_tokens=[("<|end|>", tokenizer.token_to_id("<|end|>"))]
    )
    return tokenizer


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    byte_level_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def works(directory: Path, messages: list[Message]) -> bool:
    """Load and use a tokenizer; return False if it is refused. Fails for any other outcome."""
    try:
        tokenizer = Tokenizer(str(directory))
    except InvalidCheckpoint as error:
        check_message(error)
        return False
    with closing(tokenizer):
        asyncio.run(use(tokenizer, messages))
    return True


async def use(tokenizer: Tokenizer, messages: list[Message]) -> None:
    """Use a tokenizer as a request does."""
    for text in TEXTS:
        token_ids = await tokenizer.encode(text, add_special_tokens=True)
        await tokenizer.decode(token_ids, skip_special_tokens=False)
        await tokenizer.token_names(token_ids)
        detokenizer = tokenizer.detokenizer(token_ids[:2], skip_special_tokens=True)
        (detokenizer.push_all(token_ids) + detokenizer.flush()).encode()
    for continues in (False, True):
        try:
            prompt = await tokenizer.render(messages, not continues, continues, {})
        except InvalidRequest as error:
            check_message(error)
        else:
            await tokenizer.encode(prompt, add_special_tokens=False)


def check_message(error: Exception) -> None:
    """Check that an error's text is short and printable."""
    text = str(error)
    assert 0 < len(text) < MAX_TEXT
    text.encode()


HELLO: list[Message] = [{"role": "user", "content": "hello"}]


def test_an_undamaged_tokenizer_works(directory: Path) -> None:
    assert works(directory, HELLO)
    byte_fallback_tokenizer().save(str(directory / "tokenizer.json"))
    assert works(directory, HELLO)


@pytest.mark.parametrize("make", [byte_level_tokenizer, byte_fallback_tokenizer])
def test_damaged_tokenizers_work_or_are_refused(fuzzing: Fuzzing, directory: Path, make: Any) -> None:
    file = directory / "tokenizer.json"
    whole = json.loads(make().to_str())

    def check_bytes(damaged: bytes) -> None:
        file.write_bytes(damaged)
        works(directory, HELLO)

    def check_values(damaged: Any) -> None:
        check_bytes(json.dumps(damaged).encode())

    parts = st.sampled_from([name for name, part in whole.items() if isinstance(part, dict | list) and part])
    in_part = parts.flatmap(lambda name: damaged_json(whole[name]).map(lambda part: {**whole, name: part}))
    fuzzing.run_all(
        [
            (damaged_bytes(json.dumps(whole).encode()), check_bytes),
            (damaged_json(whole), check_values),
            (in_part, check_values),
        ],
        40,
    )


def test_damaged_configs_work_or_are_refused(fuzzing: Fuzzing, directory: Path) -> None:
    files = ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
    special = {"eos_token": {"content": "<|end|>", "lstrip": False}, "additional_special_tokens": ["<|end|>"]}
    wholes: dict[str, Any] = dict(zip(files, [CONFIG, special, {"<|more|>": 300}], strict=True))

    def check(given: tuple[str, bytes]) -> None:
        for name in files[1:]:
            (directory / name).unlink(missing_ok=True)
        (directory / files[0]).write_text(json.dumps(CONFIG))
        (directory / given[0]).write_bytes(given[1])
        works(directory, HELLO)

    damaged = st.sampled_from(files).flatmap(
        lambda name: st.one_of(
            damaged_json(wholes[name]).map(lambda config: json.dumps(config).encode()),
            damaged_bytes(json.dumps(wholes[name]).encode()),
        ).map(lambda content: (name, content))
    )
    fuzzing.run(damaged, check, 60)


def test_any_template_and_messages_are_rendered_or_refused(fuzzing: Fuzzing, directory: Path) -> None:
    file = directory / "chat_template.jinja"

    def check_template(damaged: bytes) -> None:
        file.write_bytes(damaged)
        works(directory, HELLO)

    fuzzing.run(damaged_bytes(TEMPLATE.encode()), check_template, 40)
    file.write_text(TEMPLATE)
    values = st.one_of(json_values, odd_texts)
    messages = st.lists(st.dictionaries(st.sampled_from(["role", "content", "name", "items"]), values), max_size=3)
    options = st.dictionaries(st.one_of(odd_texts, st.sampled_from(["eos_token", "raise_exception", "tools"])), values)
    with closing(Tokenizer(str(directory))) as tokenizer:

        def check_messages(given: tuple[list[Message], dict[str, object]]) -> None:
            with suppress(InvalidRequest):
                text = asyncio.run(tokenizer.render(given[0], True, False, given[1]))
                text.encode()

        fuzzing.run(st.tuples(messages, options), check_messages, 80)


@pytest.mark.parametrize("template", ESCAPES)
def test_templates_stay_in_their_sandbox(directory: Path, template: str) -> None:
    (directory / "chat_template.jinja").write_text(template)
    with closing(Tokenizer(str(directory))) as tokenizer, suppress(InvalidRequest):
        # Access outside of the sandbox is refused, or the attribute is undefined.
        assert asyncio.run(tokenizer.render(HELLO, True, False, {})) == ""


def test_half_a_surrogate_pair_is_refused(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text('{{ "\\ud83d" }}')
    with closing(Tokenizer(str(directory))) as tokenizer, pytest.raises(InvalidRequest, match="surrogates"):
        asyncio.run(tokenizer.render(HELLO, True, False, {}))


def test_a_vocabulary_that_lacks_a_byte_is_refused(directory: Path) -> None:
    for byte in (0x00, 0x0A, 0x80, 0xBF, 0xC2, 0xE0, 0xED, 0xF4):
        whole = json.loads(byte_fallback_tokenizer().to_str())
        del whole["model"]["vocab"]["<unk>"], whole["model"]["vocab"][f"<0x{byte:02X}>"]
        (directory / "tokenizer.json").write_text(json.dumps(whole))
        with pytest.raises(InvalidCheckpoint, match="not found in the vocabulary"):
            Tokenizer(str(directory))


@pytest.mark.parametrize("text", ["", "▁"])
def test_a_decoder_that_fails_on_empty_text_is_refused(directory: Path, text: str) -> None:
    whole = json.loads(byte_fallback_tokenizer().to_str())
    whole["decoder"]["decoders"][-1] |= {"start": 1, "stop": 1}
    if text:
        whole["model"]["vocab"][text] = len(whole["model"]["vocab"])
    (directory / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(InvalidCheckpoint, match="index out of bounds"):
        Tokenizer(str(directory))


def test_a_huge_token_id_takes_no_memory(directory: Path) -> None:
    whole = json.loads(byte_level_tokenizer().to_str())
    whole["model"]["vocab"]["huge"] = (1 << 32) - 1
    (directory / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(InvalidCheckpoint, match="token id 4294967295"):
        Tokenizer(str(directory))


def test_padding_takes_no_memory(directory: Path) -> None:
    whole = json.loads(byte_level_tokenizer().to_str())
    whole["padding"] = {
        "strategy": {"Fixed": 1 << 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "h",
    }  # fmt: skip
    (directory / "tokenizer.json").write_text(json.dumps(whole))
    assert works(directory, HELLO)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_file_is_named(directory: Path, name: str) -> None:
    (directory / name).write_text('{"a": ')
    with pytest.raises(InvalidCheckpoint, match=name):
        Tokenizer(str(directory))
