"""The router: from HTTP and gRPC requests to prefill and decode workers and back."""
