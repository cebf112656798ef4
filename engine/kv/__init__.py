"""The paged KV cache: blocks, prefix cache, block hashes, layout."""
