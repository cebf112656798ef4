"""Division of layers into KV groups, and the order in which their blocks are transferred."""

import pytest

from baton.engine.attention.span import FULL, AttentionSpan
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.kv.groups import KVGroups, KVPlace, TransferOrder
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.request import BlockId
from baton.engine.rope import RopeConfig

WINDOW, OTHER, CHUNK = AttentionSpan(24), AttentionSpan(40), AttentionSpan(32, is_chunked=True)
ENGINE = EngineConfig(model="", device="cpu", hybrid_kv_cache=True)


def model(*spans: AttentionSpan) -> ModelConfig:
    return ModelConfig(
        architecture="any",
        vocab_size=100,
        hidden_size=64,
        num_layers=len(spans),
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=64,
        rms_norm_eps=1e-6,
        rope=RopeConfig(theta=1e4, rotary_dim=16),
        max_model_len=1000,
        dtype="bfloat16",
        spans=() if all(span == FULL for span in spans) else spans,
    )


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([FULL] * 4, [FULL]),
        ([WINDOW] * 4, [WINDOW]),
        ([WINDOW, FULL] * 6, [FULL, WINDOW]),  # GPT-OSS
        (([WINDOW] * 5 + [FULL]) * 4 + [WINDOW] * 2, [FULL] + [WINDOW] * 6),  # Gemma 3, two places unused
        (([CHUNK] * 3 + [FULL]) * 2, [FULL] + [CHUNK] * 3),  # Llama 4
        ([WINDOW, OTHER], [OTHER, WINDOW]),
        ([FULL] * 4 + [WINDOW] * 2, [FULL, FULL, WINDOW]),
        ([WINDOW, AttentionSpan(1000)], [FULL, WINDOW]),  # as long as the context
        ([FULL] * 4 + [WINDOW] * 3, [FULL]),  # two of nine places would be unused
        ([FULL] + [WINDOW] * 16, [FULL]),  # too many groups
    ],
)
def test_layers_of_a_kind_are_divided_into_equal_groups(
    spans: list[AttentionSpan], expected: list[AttentionSpan]
) -> None:
    config = model(*spans)
    groups = KVGroups.of(ENGINE, config)
    assert groups.spans == tuple(expected)
    assert groups.has_windows == (expected != [FULL])
    places = [groups.place(layer) for layer in range(len(spans))]
    assert len(set(places)) == len(spans)
    for span, place in zip(spans, places, strict=True):
        assert len(expected) == 1 or groups.spans[place.group] in (span, FULL)
        assert place.layer < groups.layers_per_block(config)
    layout = KVCacheLayout.of(config, 16, groups=groups)
    assert layout.block_shape[1] == groups.layers_per_block(config)


def test_other_devices_and_an_option_keep_whole_blocks() -> None:
    for config in (EngineConfig(model="", device="cuda", hybrid_kv_cache=True), EngineConfig(model="", device="cpu")):
        groups = KVGroups.of(config, model(WINDOW, FULL))
        assert groups == KVGroups(16)
        assert groups.place(1) == KVPlace(0, 1)


def test_first_blocks_are_those_that_the_next_token_attends_to() -> None:
    groups = KVGroups(8, (FULL, WINDOW, CHUNK), ((0,), (1,), (2,)))
    assert groups.first_blocks(0) == [0, 0, 0]
    assert groups.first_blocks(30) == [0, 0, 0]
    assert groups.first_blocks(31) == [0, 1, 0]  # position 31 attends to 8
    assert groups.first_blocks(32) == [0, 1, 4]


def test_blocks_are_transferred_in_the_order_of_their_tokens() -> None:
    groups = KVGroups(8, (FULL, WINDOW), ((0,), (1,)))
    order = groups.transfer_order(45)
    tables = [[1, 2, 3, 4, 5, 6], [0, 0, 13, 14, 15, 16]]
    assert (order.first_blocks, order.end, order.num_blocks) == ((0, 2), 6, 10)
    assert order.blocks(tables) == [1, 2, 3, 13, 4, 14, 5, 15, 6, 16]  # type: ignore[arg-type]  # plain numbers
    assert order.blocks(tables, 1, 4) == [2, 3, 13, 4, 14]  # type: ignore[arg-type]
    assert [order.num_before(index) for index in range(8)] == [0, 1, 2, 4, 6, 8, 10, 10]
    assert order.blocks([[], []]) == []  # freed in the meantime


def test_a_part_of_a_prefix_is_usable_only_if_no_block_of_it_was_left_out() -> None:
    groups = KVGroups(8, (FULL, WINDOW), ((0,), (1,)))
    short, long = groups.transfer_order(24), groups.transfer_order(45)
    assert [short.num_usable(count, 0) for count in range(7)] == [0, 0, 1, 1, 2, 2, 3]
    assert short.num_usable(2, 2) == 2
    assert [long.num_usable(count, 1) for count in (1, 9, 10)] == [1, 1, 6]


def test_places_are_in_the_order_of_blocks() -> None:
    """Also of a part of them, from some index on."""
    groups = KVGroups(16, (FULL, AttentionSpan(40), AttentionSpan(20)), ((0,), (1,), (2,)))
    order = groups.transfer_order(6 * 16)
    tables = [[BlockId(100 * group + index) for index in range(6)] for group in range(3)]
    for start in range(6):
        places = order.places()[order.num_before(start) :]
        assert [100 * place.number + place.index for place in places] == order.blocks(tables, start)
    with_state = TransferOrder((0,), 3, 2)
    assert [(place.index, place.number) for place in with_state.places()] == [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2)]
