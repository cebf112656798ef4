"""KV transfer between processes on one host through shared memory."""
