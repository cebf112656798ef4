"""Stores: KV blocks that outlive the pool, in host memory, on disk or shared by all workers."""
