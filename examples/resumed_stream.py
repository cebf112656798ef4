"""Stream one chat completion that survives the loss of a router: resumed_stream.py http://router-0:8000 http://router-1:8000"""

import sys

import httpx
from openai import OpenAI

from baton.client import ResumingTransport

url, *routers = sys.argv[1:]
http = httpx.Client(transport=ResumingTransport(routers=routers), timeout=600)
client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http)
stream = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": "How do I read a file?"}],
    max_tokens=200,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content if chunk.choices else "", end="", flush=True)
print()
