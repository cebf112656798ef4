"""First tokens of prompts whose KV is in a store below the KV cache, of Baton and of peers."""
