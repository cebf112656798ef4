"""Parsing of outputs: reasoning, content and tool calls."""
