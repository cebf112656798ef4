"""Services that get malformed and random messages."""
