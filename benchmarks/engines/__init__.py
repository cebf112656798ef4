"""Engines compared on one machine: ours in its process, and its peers each in an environment of its own."""
