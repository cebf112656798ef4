"""A chat engine of LlamaIndex with a running server: llama_index_chat.py [URL]. Needs llama-index-llms-openai-like."""

import sys

from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.llms.openai_like import OpenAILike

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
model = OpenAILike(
    model="baton-bundled",
    api_base=f"{url}/v1",
    api_key="none",
    is_chat_model=True,
    context_window=4096,
    max_tokens=100,
)
engine = SimpleChatEngine.from_defaults(llm=model, system_prompt="Answer in one sentence.")
for question in ("What does json.dumps do?", "What does a file do?"):
    print(question)
    print(engine.chat(question))  # with the history, which the workers have in their caches
