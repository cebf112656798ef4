"""Compiled twins of what is too slow in Python; each is optional."""
