"""The router's connections to workers: streams, load, addresses that never answered."""
