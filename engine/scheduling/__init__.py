"""Continuous batching: what each step computes."""
