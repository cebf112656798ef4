"""Anthropic's Messages API: its requests as chat requests, the shapes of its responses and errors."""
