"""gRPC between processes: channels, TLS, status codes, conversion of messages."""
