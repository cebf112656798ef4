"""`helm test`: a completion is answered, and its prompt's KV was handed over from a prefill to a decode worker."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
import uuid

URL, MODEL = os.environ["URL"], os.environ["MODEL"]
TIMEOUT_S = float(os.environ["TIMEOUT_S"])
PAUSE_S = 2.0


def ask() -> tuple[str, dict[str, str]]:
    """The text of a completion whose prompt nobody has in a cache, and the answer's headers."""
    prompt = f"{uuid.uuid4()} " * 8
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    headers = {"content-type": "application/json", "x-baton-plan": "remote"}
    if key := os.environ.get("API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    # The certificate is for clients' names of the service; this asks whether requests are served.
    context = ssl._create_unverified_context() if URL.startswith("https:") else None
    request = urllib.request.Request(f"{URL}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        found = {name.lower(): value for name, value in answer.headers.items()}
        return json.load(answer)["choices"][0]["text"], found


def fault(text: str, headers: dict[str, str]) -> str | None:
    """What is wrong with an answer."""
    prefill, decode = headers.get("x-baton-prefill", ""), headers.get("x-baton-decode", "")
    handed_over = int(headers.get("x-baton-handed-over-tokens", "0"))
    if not text:
        return "the completion is empty"
    if not prefill or not decode or prefill == decode:
        return f"it was no handover: prefill at {prefill or 'nobody'}, decode at {decode or 'nobody'}"
    if handed_over < 1:
        return f"no token was handed over from {prefill} to {decode}"
    print(f"{handed_over} tokens went from {prefill} to {decode} by {headers.get('x-baton-kv-transport')}")
    return None


def main() -> int:
    """Asks until an answer is as it should be: workers may still be loading."""
    end_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            why = fault(*ask())
        except urllib.error.HTTPError as error:
            why = f"{error.code}: {error.read(800).decode(errors='replace')}"
        except (OSError, ValueError, KeyError) as error:
            why = f"{type(error).__name__}: {error}"
        if why is None:
            return 0
        print(why, flush=True)
        if time.monotonic() > end_s:
            return 1
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
