"""KV transfer: whole blocks, pulled by their new owner. Knows tensors and block ids, not requests or heads."""
