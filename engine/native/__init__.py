"""Compiled versions of code that is too slow in Python; each is optional."""
