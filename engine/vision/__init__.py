"""Images in prompts: their place among the tokens, their encoder, and the embeddings that it makes of them."""
