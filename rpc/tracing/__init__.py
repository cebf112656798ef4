"""Traces of requests: the W3C context that crosses processes, the spans of a process, and their export."""
