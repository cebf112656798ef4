"""The Qwen families: text, with recurrent state, with images."""
