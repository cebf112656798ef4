"""Panels that group the options in `--help` of `baton serve`, `worker` and `router`."""

from collections.abc import Callable

import rich_click as click

PANELS = {
    "Model": (
        "model",
        "revision",
        "tokenizer",
        "tokenizer_revision",
        "served_model_name",
        "also_serve",
        "dtype",
        "hf_overrides",
        "quantization",
        "max_model_len",
        "device",
        "pooling",
    ),
    "Workers": (
        *("role", "worker_id", "prefill", "decode", "colocated", "tensor_parallel", "prefill_tensor_parallel"),
        *("nnodes", "node_rank", "master_addr", "master_port", "node_timeout_s"),
        *("num_threads", "cores", "max_step_s", "orphan_timeout_s", "strict"),
    ),
    "Mixture of experts": (
        *("enable_expert_parallel", "expert_parallel", "prefill_expert_parallel", "all2all_backend"),
        *("enable_eplb", "num_redundant_experts", "eplb_step_interval", "eplb_num_nodes", "min_expert_ranks"),
        *("rendezvous", "group", "group_port"),
    ),
    "Weights offload": ("weights_offload", "weights_offload_dir", "weights_memory_bytes", "expert_cache_bytes"),
    "KV cache": (
        *("gpu_memory_utilization", "kv_cache_memory_bytes", "prefill_kv_cache_memory_bytes"),
        *("decode_kv_cache_memory_bytes", "kv_cache_dtype", "block_size", "enable_prefix_caching"),
        *("hybrid_kv_cache", "state_checkpoint_tokens", "kv_shards", "allow_mixed_quantization"),
    ),
    "KV stores": (
        *("kv_host_memory_bytes", "kv_disk", "kv_disk_bytes", "kv_store", "kv_store_bytes", "kv_store_ttl_s"),
        *("kv_store_key_file", "max_pinned_fraction", "pin_prefix"),
    ),
    "KV transfer": ("transport", "kv_port", "transfer_deadline_s", "handover_timeout_s"),
    "Batching": (
        *("max_num_seqs", "max_num_batched_tokens", "max_num_waiting", "async_scheduling", "enforce_eager"),
        "speculative_config",
    ),
    "LoRA adapters": (
        *("enable_lora", "lora_modules", "lora_dir", "max_loras", "max_lora_rank", "max_cpu_loras"),
        "lora_dtype",
    ),
    "Server": (
        *("host", "port", "grpc_port", "router_processes", "processes", "heartbeat_timeout_s"),
        *("api_key", "admin_api_key", "api_keys_file", "console"),
        *("protect_operations", "cors_origins", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs"),
        *("max_body_bytes", "max_body_bytes_in_flight", "max_client_body_bytes_in_flight", "body_timeout_s"),
        *("limit_mm_per_prompt", "mm_processor_kwargs", "max_image_bytes", "max_image_pixels", "allowed_media_domains"),
        *("max_choices", "max_stop", "default_timeout_s", "tool_call_parser", "reasoning_parser"),
        *("response_store_ttl_s", "response_store_bytes", "files_dir", "files_bytes", "batch_inflight"),
        *("max_request_unread_bytes", "max_key_unread_bytes", "max_unread_bytes"),
    ),
    "Routing": (
        *("workers", "policy", "slo", "local_prefill_below", "shared_cache", "cache_secret", "max_inflight"),
        *("max_queue", "max_queue_wait_s", "failover_attempts", "failover_timeout_s", "cold_start_timeout_s"),
        *("watch_interval_ms", "traffic_window_s"),
    ),
    "Registry and Ray": ("registry", "lease_s", "application", "on_ray", "ray_address"),
    "Mutual TLS": ("tls_cert", "tls_key", "tls_ca", "tls_server_name"),
    "Tracing": ("otlp_traces_endpoint", "trace_sample_ratio", "keep_timelines"),
    "Process": (
        *("detach", "name", "config_file", "log_dir", "max_log_bytes", "log_level", "log_format", "metrics_port"),
        "metrics_names",
        "drain_timeout_s",
    ),
}


def option_panels(command: Callable[..., None]) -> Callable[..., None]:
    """Group a click command's options by `PANELS`; empty panels are left out."""
    for title, names in reversed(PANELS.items()):
        command = click.option_panel(title, options=list(names))(command)
    return command
