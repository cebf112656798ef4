"""Rounding of options that a model multiplies with in its own type. No torch."""

import struct


def rounded(value: float, dtype: str) -> float:
    """Round a finite number to the nearest in a type that a model computes in; float32 is left as it is."""
    if dtype == "float16":
        (result,) = struct.unpack("<e", struct.pack("<e", value))
        return float(result)
    return as_bfloat16(value) if dtype == "bfloat16" else value


def as_bfloat16(value: float) -> float:
    """Round a finite number to the nearest in bfloat16, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    (result,) = struct.unpack("<f", struct.pack("<I", rounded))
    return float(result)
