"""The engine: requests in, tokens out, over a paged KV cache. Importing this package imports no torch."""
