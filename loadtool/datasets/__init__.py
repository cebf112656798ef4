"""Where requests come from."""
