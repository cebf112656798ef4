"""A worker's ranks: processes that have one model together, and one set of requests."""
