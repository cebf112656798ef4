"""Traces of requests: what a router records of each, its export, and the timelines of running and recent requests."""
