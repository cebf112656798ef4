"""Generators of docs/reference/ from the code."""
