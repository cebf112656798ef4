"""KV transfer by NIXL over RDMA, NVLink or UCX."""
