"""KV of other workers: receiving it, pulling prefixes, and offering cached blocks."""
