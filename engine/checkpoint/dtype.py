"""Data type of a model's activations and plain weights."""

import logging
from pathlib import Path

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.checkpoint.stored_quantization import StoredQuantization
from baton.engine.checkpoint.tensor_index import stored_dtype
from baton.engine.errors import UnsupportedModel
from baton.engine.families.base import Family

log = logging.getLogger(__name__)

DTYPES = ("bfloat16", "float16", "float32")


def choose_dtype(
    config: JsonObject,
    directory: Path,
    requested: str,
    family: Family,
    quantization: StoredQuantization | None,
    *,
    on_cpu: bool,
) -> str:
    """Return the type that a model computes in; `requested` is one of DTYPES, or auto: the checkpoint's.

    CPUs have no kernels for float16. A float16 checkpoint becomes float32 there, which holds it exactly; packed weights
    and other checkpoints are computed in bfloat16. Raises UnsupportedModel for a type that is not supported, or that
    the family overflows.
    """
    if requested not in ("auto", *DTYPES):
        raise UnsupportedModel(f"dtype {requested!r} is not supported, only auto, {', '.join(DTYPES)}")
    stored = config.text("dtype", config.text("torch_dtype", "unnamed")).removeprefix("torch.")
    if stored == "unnamed" and requested in ("auto", "float16"):
        # In FP8 checkpoints the most frequent dtype is that of matrices or scales, not the model's.
        stored = "bfloat16" if "quantization_config" in config else stored_dtype(directory)
    if requested == "auto" and stored not in DTYPES:
        raise UnsupportedModel(f"{config.source}: dtype {shown(stored)} is not supported")
    dtype = stored if requested == "auto" else requested
    if dtype != "float16":
        return dtype
    if on_cpu:
        is_packed = quantization is not None and quantization.packed.has_any
        return _on_cpu(directory, is_float16=stored == "float16", is_packed=is_packed)
    if not family.overflows_float16:
        return dtype
    if requested == "float16":
        raise UnsupportedModel(f"{family.title} overflows float16; use bfloat16 or float32")
    log.warning("%s is float16, which %s overflows: served as bfloat16", directory, family.title)
    return "bfloat16"


def _on_cpu(directory: Path, *, is_float16: bool, is_packed: bool) -> str:
    if is_packed:
        log.info("%s: no CPU kernels for float16: served as bfloat16; packed weights keep their scales", directory)
        return "bfloat16"
    if not is_float16:
        log.warning("%s: no CPU kernels for float16: served as bfloat16, of the same size", directory)
        return "bfloat16"
    log.warning(
        "%s: no CPU kernels for float16: served as float32, which holds it exactly; bfloat16 takes half the memory",
        directory,
    )
    return "float32"
