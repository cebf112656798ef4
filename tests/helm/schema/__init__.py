"""Schemas of values and of custom resources."""
