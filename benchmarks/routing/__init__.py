"""Routers compared over the same simulated engines."""
