"""Layouts by name."""

from collections.abc import Callable

from baton.engine.checkpoint.packed.gptq_layout import AwqLayout, GptqLayout
from baton.engine.checkpoint.packed.scheme import PackedScheme
from baton.engine.checkpoint.packed.stored_layout import PackedLayout

LAYOUTS: dict[str, Callable[[PackedScheme], PackedLayout]] = {
    "gptq": GptqLayout,
    "awq": AwqLayout,
}


def layout_of(scheme: PackedScheme) -> PackedLayout:
    """Return the layout that a scheme names."""
    return LAYOUTS[scheme.layout](scheme)
