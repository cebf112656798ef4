"""How objects are changed."""
