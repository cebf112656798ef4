"""JSON schemas, patterns and structural tags: what is enforced, and what is refused."""
