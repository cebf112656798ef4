"""What prefill and decode workers share: server, engine host, receiving KV, drain, watchdog, metrics."""
