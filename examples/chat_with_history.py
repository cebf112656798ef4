"""Chat with a running server: chat_with_history.py [URL]. Each line of standard input is a message.

The whole conversation is sent each time. The workers have its beginning in their caches, so only the new message is
computed.
"""

import sys

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = OpenAI(base_url=f"{url}/v1", api_key="none")
model = client.models.list().data[0].id
history: list[ChatCompletionMessageParam] = [{"role": "system", "content": "Answer in one sentence."}]
for line in sys.stdin:
    history.append({"role": "user", "content": line.strip()})
    stream = client.chat.completions.create(
        model=model, messages=history, stream=True, max_tokens=200, stream_options={"include_usage": True}
    )
    answer, num_cached = "", 0
    for chunk in stream:
        if chunk.choices and (text := chunk.choices[0].delta.content):
            answer += text
            print(text, end="", flush=True)
        if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
            num_cached = chunk.usage.prompt_tokens_details.cached_tokens or 0
    print(f"\n[{num_cached} tokens of the conversation were cached]")
    history.append({"role": "assistant", "content": answer})
