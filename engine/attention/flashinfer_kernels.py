"""FlashInfer's attention kernels that are used here."""

from dataclasses import dataclass
from typing import Any

from baton.extras import FLASHINFER

LAYOUT = "HND"  # order of a block's dimensions: heads, tokens, elements


@dataclass(frozen=True, slots=True)
class FlashInferKernels:
    """Wrapper classes and functions of the library."""

    decode: Any
    prefill: Any
    latent: Any
    latent_metadata: Any
    append: Any
    append_latent: Any
    merge: Any

    @classmethod
    def load(cls) -> "FlashInferKernels":
        """Import the library. Raises MissingExtra if it is not installed, ImportError if it does not load."""
        FLASHINFER.require("FlashInfer's attention")
        import flashinfer
        from flashinfer.mla import MLAPlanMetadata

        return cls(
            decode=flashinfer.BatchDecodeWithPagedKVCacheWrapper,
            prefill=flashinfer.BatchPrefillWithPagedKVCacheWrapper,
            latent=flashinfer.mla.BatchMLAPagedAttentionWrapper,
            latent_metadata=MLAPlanMetadata,
            append=flashinfer.append_paged_kv_cache,
            append_latent=flashinfer.page.append_paged_mla_kv_cache,
            merge=flashinfer.merge_state,
        )
