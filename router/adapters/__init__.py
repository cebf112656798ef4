"""LoRA adapters: their names, the table on which routers agree, loading at the workers, the endpoints."""
