"""Errors that need no traceback."""


class PlainError(Exception):
    """A failure whose text says what is wrong; a process that ends with it logs no traceback."""
