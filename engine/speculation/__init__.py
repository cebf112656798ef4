"""Speculative decoding: drafted tokens, how many of them a step verifies, and how many were right."""
