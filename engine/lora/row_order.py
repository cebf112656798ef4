"""Order of the outputs of queries and keys, which is another one in GGUF files than in adapters."""

from dataclasses import replace

from torch import Tensor

from baton.engine.lora.adapter_files import AdapterFiles, ModuleMatrices

ROTATED = ("q_proj", "k_proj")


def with_adjacent_pairs(files: AdapterFiles, head_dim: int) -> AdapterFiles:
    """Return an adapter for a checkpoint that has the two dimensions of each rotated pair next to each other.

    llama.cpp's converter orders the rows of Llama's queries and keys so; in adapters a pair is half a head apart.
    """
    modules = {
        name: _reordered(module, head_dim) if name.endswith(ROTATED) else module
        for name, module in files.modules.items()
    }
    return replace(files, modules=modules)


def _reordered(module: ModuleMatrices, head_dim: int) -> ModuleMatrices:
    magnitude = None if module.magnitude is None else _adjacent(module.magnitude, head_dim)
    return replace(module, b=_adjacent(module.b, head_dim), magnitude=magnitude)


def _adjacent(rows: Tensor, head_dim: int) -> Tensor:
    return rows.view(-1, 2, head_dim // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
