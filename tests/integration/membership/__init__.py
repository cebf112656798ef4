"""Registries, expert groups, and routers that share them."""
