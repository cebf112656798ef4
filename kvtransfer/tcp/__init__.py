"""KV transfer over TCP."""
