"""The router's connections to workers: streams, load, addresses that were never reached."""
