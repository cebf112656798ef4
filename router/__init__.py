"""The router: passes HTTP and gRPC requests to prefill and decode workers and streams the output back."""
