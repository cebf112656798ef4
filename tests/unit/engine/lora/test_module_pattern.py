"""Keys of patterns match modules as in PEFT, also thousands of keys and modules."""

import json
import random
from pathlib import Path

import pytest
from peft.utils.other import get_pattern_key

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.errors import InvalidAdapter
from baton.engine.lora import module_pattern
from baton.engine.lora.module_pattern import ModulePattern

DEFAULT = 0.5
PARTS = ("model", "layers", "1", "11", "self_attn", "self", "attn", "q_proj", "proj", "mlp", "experts")
EXPRESSIONS = (r"layers\.1\..*", "(q|k)_proj", "q_proj|mlp", "[a-z]+_proj", "q_proj$", "", "^", r"layers\.\d+\.mlp")


def pattern_of(directory: Path, keys: list[str]) -> ModulePattern:
    path = directory / "adapter_config.json"
    path.write_text(json.dumps({"alpha_pattern": {key: float(place) for place, key in enumerate(keys)}}))
    return ModulePattern.of(JsonObject.read(path), "alpha_pattern")


def peft_value(keys: list[str], module: str) -> float:
    key = get_pattern_key(keys, module)
    return keys.index(key) if key in keys else DEFAULT


@pytest.mark.parametrize("seed", range(5))
def test_values_are_those_of_peft(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)

    def name() -> str:
        return ".".join(draw.choices(PARTS, k=draw.randint(1, 4)))

    def key() -> str:
        made = name()
        if draw.random() < 0.3:  # a wildcard in another place
            place = draw.randrange(len(made))
            made = f"{made[:place]}.{made[place + 1 :]}"
        made = made.replace(".", r"\.", draw.choice((0, 0, 1, 9)))
        return draw.choice(("", "", "^")) + made if draw.random() < 0.9 else draw.choice(EXPRESSIONS)

    found = 0
    for _ in range(40):
        keys = list(dict.fromkeys(key() for _ in range(20)))
        pattern = pattern_of(tmp_path, keys)
        for module in [name() for _ in range(40)]:
            assert pattern.value_of(module, DEFAULT) == peft_value(keys, module), (keys, module)
            found += peft_value(keys, module) != DEFAULT
    assert found > 100


def test_thousands_of_names_need_few_tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_pattern, "MAX_TRIES", 100_000)
    names = [f"model.layers.{layer}.mlp.experts.{expert}.up_proj" for layer in range(50) for expert in range(200)]
    pattern = pattern_of(tmp_path, names)
    assert [pattern.value_of(f"base.{name}", DEFAULT) for name in names[::50]] == list(range(0, 10_000, 50))
    assert pattern.value_of("model.layers.50.mlp.experts.0.up_proj", DEFAULT) == DEFAULT


def test_too_many_expressions_for_the_modules_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = pattern_of(tmp_path, [rf"layers\.{layer}\..*" for layer in range(100)])
    assert [pattern.value_of(f"model.layers.{layer}.mlp", DEFAULT) for layer in range(10)] == list(range(10))
    monkeypatch.setattr(module_pattern, "MAX_MATCHING_S", 0.0)
    with pytest.raises(InvalidAdapter, match=r"alpha_pattern has too many keys that are regular expressions"):
        pattern.value_of("model.layers.10.mlp", DEFAULT)


def test_names_with_too_many_kinds_of_wildcards_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_pattern, "MAX_TRIES", 100)
    pattern = pattern_of(tmp_path, [f"{number:08b}".replace("1", ".") for number in range(256)])
    with pytest.raises(InvalidAdapter, match=r"alpha_pattern has too many keys that are regular expressions"):
        pattern.value_of("model.layers00", DEFAULT)


def test_a_slow_expression_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes milliseconds for each name, of which an adapter may have tens of thousands."""
    monkeypatch.setattr(module_pattern, "MAX_MATCHING_S", 0.1)
    pattern = pattern_of(tmp_path, [r"[\w.]*[\w.]*[\w.]*[\w.]*!"])
    names = [f"model.layers.{layer}.mlp.experts.{expert}.up_proj" for layer in range(10) for expert in range(256)]
    with pytest.raises(InvalidAdapter, match="or too complex ones: name the modules instead"):
        [pattern.value_of(name, DEFAULT) for name in names]
