"""`baton simulate`: simulated workers in this process, as `python -m simulation.workers` runs them."""

from simulation.workers import main as command

__all__ = ["command"]
