"""`/v1/cache/pins`: prefixes that workers hold in their KV caches, and are placed anew when one is lost."""
