"""KV transfer: blocks or parts of them, pulled by their new owner. Knows tensors and ids, not requests or heads."""
