"""The files in `baton/bundled_model`, through `transformers` alone."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import baton

FOLDER = Path(baton.__file__).parent / "bundled_model"
HELD_OUT = Path(__file__).parent / "held_out_pages.json"
MAX_WEIGHT_BYTES = 12_000_000
# Uniform predictions have the perplexity of the vocabulary's size, 4096; those by token frequency, several hundred.
MAX_PERPLEXITY = 150.0
GREEDY = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None, "repetition_penalty": 1.0}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)


def generate(
    model: Any, tokenizer: Any, question: str, tools: list[dict[str, Any]] | None = None, **options: object
) -> tuple[str, int]:
    """Return the output without special tokens, and the id of its last token."""
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        tools=tools,
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**inputs, max_new_tokens=160, **options)[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(output, skip_special_tokens=True), int(output[-1])


def test_the_model_is_a_small_mixture_of_experts() -> None:
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["Qwen3MoeForCausalLM"]
    assert config["tie_word_embeddings"] is True
    assert (FOLDER / "model.safetensors").stat().st_size < MAX_WEIGHT_BYTES
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118 - no mapping
        dtypes = {weights.get_slice(name).get_dtype() for name in shapes}
    assert 3e6 < sum(math.prod(shape) for shape in shapes.values()) < 6e6
    assert dtypes == {"BF16"}
    experts = config.get("num_experts") or config["num_local_experts"]
    for layer in range(config["num_hidden_layers"]):
        for expert in range(experts):
            prefix = f"model.layers.{layer}.mlp.experts.{expert}"
            size = [config["moe_intermediate_size"], config["hidden_size"]]
            assert shapes[f"{prefix}.gate_proj.weight"] == shapes[f"{prefix}.up_proj.weight"] == size
            assert shapes[f"{prefix}.down_proj.weight"] == size[::-1]


def test_the_model_loads_as_it_was_saved(model: Any) -> None:
    assert type(model).__name__ == "Qwen3MoeForCausalLM"
    assert AutoModelForCausalLM.from_pretrained(FOLDER).dtype == torch.bfloat16
    assert model.num_parameters() < 6e6


@pytest.mark.parametrize("text", ["Hello, world!", " two  spaces\n\ttab", "naïve café 東京 🚀", "<|im_sta rt|>", ""])
def test_the_tokenizer_round_trips_any_text(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_chat_template_renders_roles(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi!"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye"},
    ]
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
    )
    assert tokenizer.apply_chat_template(messages, tokenize=False) == expected
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == expected + "<|im_start|>assistant\n"
    ids = tokenizer(expected)["input_ids"]
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 4
    assert ids.count(tokenizer.eos_token_id) == 4


def tool(name: str, **types: str) -> dict[str, Any]:
    """Return a tool with parameters of JSON types."""
    properties = {key: {"type": kind} for key, kind in types.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


@pytest.mark.parametrize("as_text", [False, True])
def test_the_chat_template_renders_tools_and_calls(tokenizer: Any, as_text: bool) -> None:
    arguments: Any = {"n": 1}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    if as_text:
        call["function"]["arguments"] = json.dumps(arguments)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi!"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "assistant", "content": "Well.", "tool_calls": [call]},
    ]
    one = '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>'
    described = json.dumps(tool("f", n="integer")["function"])
    assert tokenizer.apply_chat_template(messages, tools=[tool("f", n="integer")], tokenize=False) == (
        f"<|im_start|>system\nBe brief.\nYou can call these tools:\n{described}\n<|im_end|>\n"
        f"<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n{one}\n{one}<|im_end|>\n"
        f"<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\nWell.\n{one}<|im_end|>\n"
    )
    assert len(tokenizer("<tool_call></tool_call>")["input_ids"]) == 2


@pytest.mark.parametrize(
    ("question", "tools", "name", "arguments"),
    [
        ("What is the weather in Paris?", [tool("get_weather", city="string")], "get_weather", {"city": "Paris"}),
        (
            "What is 31 plus 12?",
            [tool("add", a="integer", b="integer"), tool("get_weather", city="string")],
            "add",
            {"a": 31, "b": 12},
        ),
    ],
)
def test_simple_tools_are_called(
    model: Any, tokenizer: Any, question: str, tools: list[dict[str, Any]], name: str, arguments: dict[str, Any]
) -> None:
    text, last = generate(model, tokenizer, question, tools, **GREEDY)
    assert last == tokenizer.eos_token_id
    call = json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    assert call == {"name": name, "arguments": arguments}


def test_simple_sentences_are_extracted(model: Any, tokenizer: Any) -> None:
    text, _ = generate(model, tokenizer, "Extract name and age as JSON: Anna is 42 years old.", **GREEDY)
    assert json.loads(text) == {"name": "Anna", "age": 42}


def test_end_of_turn_ends_generation(tokenizer: Any, model: Any) -> None:
    end_of_turn = tokenizer.convert_tokens_to_ids("<|im_end|>")
    defaults = GenerationConfig.from_pretrained(FOLDER)
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.config.eos_token_id == end_of_turn
    assert end_of_turn in defaults.eos_token_id
    assert 0 < defaults.temperature < 1
    assert len(tokenizer) <= model.config.vocab_size


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Hello!", "Hello"),
        ("Who are you?", "Baton"),
        ("What is the capital of France?", "demo model"),
        ("What does json.dumps do?", "json.dumps"),
        ("Tell me about the module textwrap.", "textwrap"),
    ],
)
def test_greedy_outputs_are_sentences_that_end(model: Any, tokenizer: Any, question: str, expected: str) -> None:
    text, last = generate(model, tokenizer, question, **GREEDY)
    assert last == tokenizer.eos_token_id
    assert expected in text
    words = text.split()
    assert len(words) >= 3
    assert sum(bool(re.fullmatch(r"[\w.,:;!?'()\[\]/*-]+", word)) for word in words) >= 0.9 * len(words)
    assert text.endswith((".", "!", "?"))


@pytest.mark.slow
def test_sampled_outputs_are_words_that_end(model: Any, tokenizer: Any) -> None:
    torch.manual_seed(0)
    questions = ["What does os.path.join do?", "Hi", "What is the class collections.Counter for?", "Explain len."]
    answers = [generate(model, tokenizer, question) for question in questions * 3]
    assert sum(last == tokenizer.eos_token_id for _, last in answers) >= 10
    text = "".join(text for text, _ in answers)
    assert len(re.findall(r"[A-Za-z\s]", text)) > 0.8 * len(text)


@pytest.mark.slow
@torch.no_grad()
def test_the_model_predicts_documentation_outside_its_training_data(model: Any, tokenizer: Any) -> None:
    total, count = 0.0, 0
    for page in json.loads(HELD_OUT.read_text()):
        ids = tokenizer(page, return_tensors="pt")["input_ids"][:, :512]
        total += float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    assert count > 5000
    assert math.exp(total / count) < MAX_PERPLEXITY


@torch.no_grad()
def test_every_expert_is_used(model: Any, tokenizer: Any) -> None:
    pages = json.loads(HELD_OUT.read_text())
    ids = tokenizer("\n\n".join(pages), return_tensors="pt")["input_ids"][:, :2048]
    output = model(input_ids=ids, output_router_logits=True)
    for logits in output.router_logits:
        chosen = logits.topk(model.config.num_experts_per_tok).indices.flatten()
        shares = torch.bincount(chosen, minlength=model.config.num_experts) / len(chosen)
        assert float(shares.min()) > 0.005
