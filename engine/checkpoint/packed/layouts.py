"""Layouts by name."""

from collections.abc import Callable

from baton.engine.checkpoint.packed.compressed_layout import BytesLayout, Mxfp4Layout, Nvfp4Layout, WordsLayout
from baton.engine.checkpoint.packed.gptq_layout import AwqLayout, GptqLayout
from baton.engine.checkpoint.packed.scheme import PackedScheme
from baton.engine.checkpoint.packed.stored_layout import PackedLayout

LAYOUTS: dict[str, Callable[[PackedScheme], PackedLayout]] = {
    "gptq": GptqLayout,
    "awq": AwqLayout,
    "words": WordsLayout,
    "bytes": BytesLayout,
    "nvfp4": Nvfp4Layout,
    "mxfp4": Mxfp4Layout,
}


def layout_of(scheme: PackedScheme) -> PackedLayout:
    """Return the layout that a scheme names."""
    return LAYOUTS[scheme.layout](scheme)
