"""Types of tensors in GGUF files: their numbers, and elements and bytes of a block."""

from dataclasses import dataclass

PACKED = "gguf-"  # beginning of the dtypes of tensors in blocks


@dataclass(frozen=True, slots=True)
class GgufType:
    """Type of a tensor's elements, of which a block has several."""

    name: str
    elements: int
    num_bytes: int
    dtype: str  # as in StoredTensor


def _blocks(name: str, elements: int, num_bytes: int) -> GgufType:
    return GgufType(name, elements, num_bytes, PACKED + name)


TYPES = {
    0: GgufType("F32", 1, 4, "float32"),
    1: GgufType("F16", 1, 2, "float16"),
    2: _blocks("Q4_0", 32, 18),
    3: _blocks("Q4_1", 32, 20),
    6: _blocks("Q5_0", 32, 22),
    7: _blocks("Q5_1", 32, 24),
    8: _blocks("Q8_0", 32, 34),
    12: _blocks("Q4_K", 256, 144),
    13: _blocks("Q5_K", 256, 176),
    14: _blocks("Q6_K", 256, 210),
    30: GgufType("BF16", 1, 2, "bfloat16"),
    39: _blocks("MXFP4", 32, 17),
}
# Types that other programs read, for messages.
OTHER_TYPES = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
}
BY_DTYPE = {each.dtype: each for each in TYPES.values()}
