"""Finds the tensors of packed matrices among a checkpoint's tensors."""

from collections.abc import Mapping

from baton.engine.checkpoint.gguf.types import BY_DTYPE
from baton.engine.checkpoint.packed.gguf_layout import GgufLayout
from baton.engine.checkpoint.packed.layouts import layout_of
from baton.engine.checkpoint.packed.scheme import PackedModules
from baton.engine.checkpoint.packed.stored_layout import PackedLayout, Wanted
from baton.engine.checkpoint.stored_tensor import StoredTensor, find_tensor
from baton.engine.errors import InvalidCheckpoint

WEIGHT, BIAS = ".weight", ".bias"
CODES = ("int8",)  # dtypes of a tensor under a weight's own name that is packed nevertheless


class PackedLookup:
    """Packed matrices of a checkpoint, by the names that their weights would have if they were plain."""

    def __init__(self, tensors: Mapping[str, StoredTensor], modules: PackedModules) -> None:
        self._tensors = tensors
        self._modules = modules

    def __contains__(self, name: str) -> bool:
        """Whether a weight is stored packed under other names than its own."""
        scheme = self._modules.scheme_of(module_of(name)) or self._modules.default
        return scheme is not None and module_of(name) + layout_of(scheme).parts(1, 1)[0].suffix in self._tensors

    def layout(self, name: str) -> PackedLayout | None:
        """Return the layout of a matrix that is stored packed; None for any other tensor.

        Raises InvalidCheckpoint if it is stored neither packed nor plain, and if the config excludes its module from
        quantization although it is packed.
        """
        plain = self._tensors.get(name)
        if plain is not None and (blocks := BY_DTYPE.get(plain.dtype)) is not None and blocks.elements > 1:
            return GgufLayout(blocks)
        if not self._modules.has_any or not name.endswith(WEIGHT) or (plain and plain.dtype not in CODES):
            return None
        module = module_of(name)
        scheme = self._modules.scheme_of(module) or self._modules.default
        if scheme is None:
            return None
        layout = layout_of(scheme)
        marker = module + layout.parts(1, 1)[0].suffix
        if marker not in self._tensors:
            raise InvalidCheckpoint(f"the checkpoint has neither {name} nor {marker}")
        if self._modules.is_excluded(module):
            raise InvalidCheckpoint(f"{marker} is packed, but quantization_config says that {module} is not quantised")
        return layout

    def find(self, layout: PackedLayout, wanted: Wanted) -> dict[str, StoredTensor]:
        """Return the tensors of a matrix by suffix. Raises InvalidCheckpoint or UnsupportedModel."""
        layout.check(wanted)
        found: dict[str, StoredTensor] = {}
        for part in layout.parts(wanted.num_rows, wanted.num_columns):
            name = wanted.module + part.suffix
            if not part.is_optional or name in self._tensors:
                found[part.suffix] = find_tensor(self._tensors, name, part.shapes, part.dtypes)
        return found

    def names(self, name: str) -> list[str]:
        """Return the names of the tensors in which a weight is stored."""
        layout = self.layout(name)
        if layout is None:
            return [name]
        names = (module_of(name) + part.suffix for part in layout.parts(1, 1))
        return [each for each in names if each in self._tensors]

    def is_bias_of_packed(self, name: str) -> bool:
        """Return whether a tensor has the name of a packed module's bias."""
        return name.endswith(BIAS) and name.removesuffix(BIAS) + ".qweight" in self._tensors


def module_of(name: str) -> str:
    """Return the module of a weight."""
    return name.removesuffix(WEIGHT)
