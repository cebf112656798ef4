"""Parts common to prefill and decode workers: server, engine host, KV receives, drain, watchdog, metrics."""
