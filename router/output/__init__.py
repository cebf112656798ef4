"""Outputs: from tokens to text, reasoning, content and tool calls, and the grammars that enforce them."""
