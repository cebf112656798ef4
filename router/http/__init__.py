"""The HTTP server: connections, bodies, event streams; what is served lies in `openai/`."""
