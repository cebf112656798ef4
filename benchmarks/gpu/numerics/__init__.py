"""Comparisons of the engine on a device with references."""
