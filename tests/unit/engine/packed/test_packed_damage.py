"""Packed checkpoints and GGUF files that are damaged, lie, or belong to another format."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from baton.engine.checkpoint.gguf.config import gguf_config
from baton.engine.checkpoint.gguf.header import MAX_ELEMENTS, read_header
from baton.engine.checkpoint.gguf.metadata import Metadata
from baton.engine.checkpoint.gguf.tensors import MAX_EXPERTS, read_gguf_tensors
from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.checkpoint.packed.compressed_layout import WordsLayout, powers_of_two
from baton.engine.checkpoint.packed.gptq_config import read_gptq
from baton.engine.checkpoint.packed.gptq_layout import AwqLayout, GptqLayout
from baton.engine.checkpoint.packed.grouped_matrix import GroupedMatrix
from baton.engine.checkpoint.packed.scheme import PackedScheme
from baton.engine.checkpoint.packed.stored_layout import Wanted
from baton.engine.checkpoint.stored_tensor import StoredTensor
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel
from baton.engine.layers.weights.grouped_weight import PlainWeight


def whole(num_rows: int, num_columns: int) -> Wanted:
    return Wanted.of("proj", (num_rows, num_columns), (slice(None), slice(None)))


def words(codes: list[int], bits: int) -> np.ndarray:
    """Return codes in 32-bit words, the first lowest, less 1 in each code of the whole words, as GPTQ's writers do."""
    per_word = 32 // bits
    found = [
        sum(code << (place * bits) for place, code in enumerate(codes[start : start + per_word]))
        for start in range(0, len(codes), per_word)
    ]
    ones = sum(1 << (place * bits) for place in range(per_word))
    return (np.array(found, dtype=np.uint64) - ones).astype(np.uint32).view(np.int32)


@pytest.mark.parametrize(("bits", "zeros"), [(4, [8, 0, 5, 15, 0, 1, 7, 3]), (8, [128, 0, 255, 1])])
def test_a_zero_point_of_0_borrows_in_gptqs_words(bits: int, zeros: list[int]) -> None:
    num_columns = 32
    tensors = {
        ".qweight": torch.zeros(num_columns * bits // 32, len(zeros), dtype=torch.int32),
        ".scales": torch.ones(1, len(zeros), dtype=torch.float16),
        ".qzeros": torch.from_numpy(words(zeros, bits)).view(1, -1),
    }
    layout = GptqLayout(PackedScheme(layout="gptq", bits=bits, group_size=32, zero_offset=1))
    matrix = layout.read(tensors, whole(len(zeros), num_columns))
    expected = -torch.tensor(zeros, dtype=torch.float32)
    assert torch.equal(matrix.dequantised(slice(None), torch.float32)[:, 0], expected)


@pytest.mark.parametrize("layout", [GptqLayout, AwqLayout])
def test_outputs_that_do_not_fill_words_are_refused(layout: type[GptqLayout] | type[AwqLayout]) -> None:
    with pytest.raises(InvalidCheckpoint, match="proj has 12 outputs, which is not a multiple of 8"):
        layout(PackedScheme(layout="gptq", bits=4, group_size=32)).check(whole(12, 64))


def test_tensors_of_a_matrix_have_equally_many_rows() -> None:
    with pytest.raises(ValueError, match="different numbers of rows"):
        GroupedMatrix(low=torch.zeros(8, 16, dtype=torch.uint8), bits=4, scales=torch.ones(12, 1))


def test_read_matrices_are_copies() -> None:
    scheme = PackedScheme(layout="words", bits=4, group_size=32, has_zeros=False, has_order=True)
    tensors = {
        ".weight_packed": torch.zeros(8, 8, dtype=torch.int32),
        ".weight_scale": torch.ones(8, 2),
        ".weight_g_idx": torch.tensor([1, 0] * 32, dtype=torch.int32),
    }
    matrix = WordsLayout(scheme).read(tensors, whole(8, 64))
    before = matrix.dequantised(slice(None), torch.float32)
    for tensor in tensors.values():
        tensor.fill_(0)
    assert torch.equal(matrix.dequantised(slice(None), torch.float32), before)


def test_the_largest_e8m0_code_is_not_a_number() -> None:
    found = powers_of_two(torch.tensor([0, 127, 254, 255], dtype=torch.uint8)).float()
    assert found[:3].tolist() == [2.0**-127, 1.0, 2.0**127]
    assert found[3].isnan()


@pytest.mark.parametrize("pattern", ["-:(?i).*visual.*", "-:(", "-:" + "a" * 2000])
def test_rules_that_are_no_patterns_are_refused_before_loading(pattern: str) -> None:
    config = JsonObject({"bits": 4, "group_size": 32, "dynamic": {pattern: {}}}, "config.json")
    with pytest.raises(InvalidCheckpoint, match="not a regular expression"):
        read_gptq(config)


def test_a_rows_bits_do_not_depend_on_the_batch_beside_packed_parts() -> None:
    torch.manual_seed(0)
    weight, x = PlainWeight(torch.randn(96, 256)), torch.randn(9, 256)
    alone = torch.cat([weight(row.unsqueeze(0)) for row in x])
    assert torch.equal(weight(x), alone)
    assert torch.equal(weight(x[:2]), alone[:2])


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf_file(path: Path, shape: tuple[int, ...], name: str, *, metadata: bytes = b"", num_values: int = 0) -> Path:
    """Write a GGUF file with one tensor in F16 whose data has at most 4 KiB."""
    entry = text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 1, 0)
    content = b"GGUF" + struct.pack("<IQQ", 3, 1, num_values) + metadata + entry
    path.write_bytes(content + bytes(-len(content) % 32 + 4096))
    return path


@pytest.mark.parametrize("shape", [(0, 1, 1 << 62), (32, 0), (0,)])
def test_dimensions_of_0_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"dimensions .* must be above 0"):
        read_header(gguf_file(tmp_path / "a.gguf", shape, "blk.0.ffn_gate_exps.weight"))


def test_too_many_experts_are_refused(tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "a.gguf", (1, 1, MAX_EXPERTS + 1), "blk.0.ffn_gate_exps.weight")
    path.write_bytes(path.read_bytes() + bytes(4 * MAX_EXPERTS))
    with pytest.raises(InvalidCheckpoint, match="experts, over"):
        read_gguf_tensors([path])


def test_long_arrays_are_refused_before_they_are_read(tmp_path: Path) -> None:
    metadata = text("a") + struct.pack("<IIQ", 9, 0, MAX_ELEMENTS + 1)
    with pytest.raises(InvalidCheckpoint, match=f"is over {MAX_ELEMENTS}"):
        read_header(gguf_file(tmp_path / "a.gguf", (32,), "a", metadata=metadata, num_values=1))


LLAMA = {
    "general.architecture": "llama",
    "llama.embedding_length": 64,
    "llama.block_count": 1,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.context_length": 128,
    "llama.feed_forward_length": 128,
}


def config_of(
    shape: tuple[int, ...] = (100, 64), factors: list[float] | None = None, **more: object
) -> dict[str, object]:
    embedding = StoredTensor("model.embed_tokens.weight", Path("a"), "float16", shape, 0, 2)
    return gguf_config(Metadata({**LLAMA, **more}, "a.gguf"), {embedding.name: embedding}, factors)


@pytest.mark.parametrize(
    ("factors", "more"),
    [
        ([1.0, 2.0], {"llama.attention.key_length": 1 << 40}),
        ([0.0] * 16, {}),
        ([2.0] * 16, {"llama.rope.freq_base": -1.0}),
    ],
)
def test_rope_factors_that_cannot_be_are_refused(factors: list[float], more: dict[str, object]) -> None:
    with pytest.raises(InvalidCheckpoint, match="rope_freqs"):
        config_of(factors=factors, **more)


def test_an_embedding_that_is_no_matrix_is_refused() -> None:
    with pytest.raises(InvalidCheckpoint, match=r"token_embd.weight is not a matrix"):
        config_of(shape=(6400,))


def test_chats_end_at_every_token_that_ends_a_turn() -> None:
    tokens = ["a", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>"]
    more = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1, 3, 3, 1],  # the last one is ordinary text
        "tokenizer.ggml.eos_token_id": 1,
    }
    assert config_of(**more)["eos_token_id"] == [1, 2]


def test_a_directory_of_gguf_files_is_refused(tmp_path: Path) -> None:
    """Another format's config would misread the order of llama's weights."""
    gguf_file(tmp_path / "a.gguf", (32,), "a")
    for config in (None, {"architectures": ["LlamaForCausalLM"]}):
        if config is not None:
            (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(UnsupportedModel, match=r"name the .gguf file itself"):
            read_model_config(tmp_path)
