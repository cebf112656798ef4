"""Resumption of requests whose router was lost."""
