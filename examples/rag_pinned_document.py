"""Ask questions about a document whose KV is pinned: rag_pinned_document.py URL DOCUMENT QUESTION...

The document is computed once, in front of the first question, and stays in the KV cache until the pin is deleted,
whatever other requests need the memory. See docs/pins.md.
"""

import sys
from pathlib import Path

import httpx

TTL_S = 3600  # so that the pin also ends if this program is killed


def main(url: str, document: str, *questions: str) -> None:
    """Pin the document, ask each question, and delete the pin."""
    text = Path(document).read_text(encoding="utf-8")
    beginning = [{"role": "system", "content": f"Answer from this document.\n\n{text}"}]
    with httpx.Client(base_url=url, timeout=600) as client:
        pin = (
            client.post("/v1/cache/pins", json={"messages": beginning, "ttl_seconds": TTL_S}).raise_for_status().json()
        )
        print(f"pinned {pin['tokens']} tokens on {', '.join(pin['workers'])}")
        try:
            for question in questions:
                messages = [*beginning, {"role": "user", "content": question}]
                response = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 200})
                answer = response.raise_for_status().json()["choices"][0]["message"]["content"]
                print(f"{question}\n{answer}\n[{response.headers['x-baton-cached-tokens']} tokens were cached]")
        finally:
            client.delete(f"/v1/cache/pins/{pin['id']}").raise_for_status()


if __name__ == "__main__":
    main(*sys.argv[1:])
