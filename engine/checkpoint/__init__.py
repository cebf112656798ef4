"""Checkpoint directories: config.json, tensors, stored quantization, hashes."""
