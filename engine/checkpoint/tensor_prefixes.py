"""Prefixes of tensor names, which differ from those of a language model in some checkpoints. No torch."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from baton.engine.checkpoint.stored_tensor import StoredTensor

EMBEDDING, PREFIX, HEAD = "embed_tokens.weight", "model.", "lm_head."
Prefixes = tuple[tuple[str, str], ...]  # pairs of a prefix in the files and the model's


def under_model(tensors: Mapping[str, StoredTensor], prefixes: Prefixes = ()) -> dict[str, StoredTensor]:
    """Return the tensors under the names of a language model.

    Some embedding checkpoints lack the prefix `model.`. A model for text and images has others, listed in `prefixes`,
    and a draft head may have or lack the prefix.
    """
    if EMBEDDING in tensors and PREFIX + EMBEDDING not in tensors and ("", PREFIX) not in prefixes:
        prefixes = ((HEAD, HEAD), ("", PREFIX))
    names = {name: model_name(name, prefixes) for name in tensors}
    return {new: replace(tensors[old], name=new) for old, new in names.items()}


def stored_names(name: str, prefixes: Prefixes) -> Iterator[str]:
    """Yield the names that a part of the language model may have in the files; the model's own is the first."""
    yield name
    for old, new in prefixes:
        if name.startswith(new):
            yield old + name.removeprefix(new)


def model_name(name: str, prefixes: Prefixes) -> str:
    """Return the name that a tensor in the files has in the language model."""
    for old, new in prefixes:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
