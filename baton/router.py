"""`baton router`: one router in this process, as `python -m router` runs it."""

from router.__main__ import main as command

__all__ = ["command"]
