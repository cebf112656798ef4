"""Checksums of KV blocks, on CPUs and GPUs."""
