"""KV transfer between processes of one host through shared memory."""
