"""A worker's tensor-parallel ranks: processes that share one model and one set of requests."""
