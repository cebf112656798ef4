"""Comparison of routers on the same simulated engines."""
