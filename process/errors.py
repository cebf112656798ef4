"""Errors that need no traceback."""


class PlainError(Exception):
    """A failure whose text is enough: a process that ends with it logs no traceback."""
