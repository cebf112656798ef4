"""KV transfer: the new owner pulls blocks, or parts of them. Knows tensors and ids, not requests or heads."""
