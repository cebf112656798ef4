"""The router's connections to workers: streams, load, dispatch of requests."""
