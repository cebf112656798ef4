"""Pooling of a model, and the options of one embedding: plain data, no torch."""

from dataclasses import dataclass
from typing import Literal

from baton.engine.errors import InvalidRequest

PoolingKind = Literal["last", "mean", "cls"]
KINDS: tuple[PoolingKind, ...] = ("last", "mean", "cls")
MAX_SHOWN_SIZES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """Options of one embedding."""

    dimensions: int | None = None  # truncate to this many; None: all
    normalizes: bool | None = None  # scale to length 1; None: as the model's pooling does


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingConfig:
    """How a model makes embeddings. Equal configs of equal models give embeddings that can be compared."""

    kind: PoolingKind  # of the hidden states: the last token's, their mean, or the first token's (cls)
    normalizes: bool  # scales embeddings to length 1
    size: int  # dimensions of an embedding
    is_matryoshka: bool = False  # trained so that embeddings may be truncated (arXiv 2205.13147)
    matryoshka_sizes: tuple[int, ...] = ()  # sizes to which they may be truncated; empty: any

    @property
    def needs_all_tokens(self) -> bool:
        """Whether hidden states in front of the last token are needed, which a prefix cache does not have."""
        return self.kind != "last"

    def check(self, params: PoolingParams) -> None:
        """Raise InvalidRequest for a size to which embeddings of this model may not be truncated."""
        wanted = params.dimensions
        if wanted is None or (wanted == self.size and not self.is_matryoshka):
            return
        if not self.is_matryoshka:
            raise InvalidRequest(
                f"dimensions is {wanted}, but the model's embeddings have {self.size} and its config does not allow to "
                "truncate them (is_matryoshka, matryoshka_dimensions); omit dimensions"
            )
        if self.matryoshka_sizes and wanted not in self.matryoshka_sizes:
            allowed = ", ".join(map(str, self.matryoshka_sizes[:MAX_SHOWN_SIZES]))
            raise InvalidRequest(f"dimensions is {wanted}, but the model's config allows only {allowed}")
        if not 1 <= wanted <= self.size:
            raise InvalidRequest(f"dimensions is {wanted}, but must be from 1 to {self.size}")
