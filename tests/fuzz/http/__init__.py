"""The HTTP server with malformed and random requests."""
