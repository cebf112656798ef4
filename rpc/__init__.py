"""gRPC between processes: channels, TLS, status codes, message conversion."""
