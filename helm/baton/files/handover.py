"""`helm test`: sends a completion whose prompt's KV is handed over from a prefill to a decode worker."""

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


def complete() -> tuple[str, dict[str, str]]:
    """Return the text of a completion whose prompt no worker has cached, and the response's headers."""
    prompt = f"{uuid.uuid4()} " * 8
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    headers = {"content-type": "application/json", "x-baton-plan": "remote"}
    if key := os.environ.get("API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    # The certificate has the names that clients use; this only checks that requests are served.
    context = ssl._create_unverified_context() if URL.startswith("https:") else None
    request = urllib.request.Request(f"{URL}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60, context=context) as response:
        found = {name.lower(): value for name, value in response.headers.items()}
        return json.load(response)["choices"][0]["text"], found


def fault(text: str, headers: dict[str, str]) -> str | None:
    """Return what is wrong with a response, or None."""
    prefill, decode = headers.get("x-baton-prefill", ""), headers.get("x-baton-decode", "")
    handed_over = int(headers.get("x-baton-handed-over-tokens", "0"))
    if not text:
        return "the completion is empty"
    if not prefill or not decode or prefill == decode:
        return f"there was no handover: prefill at {prefill or 'no worker'}, decode at {decode or 'no worker'}"
    if handed_over < 1:
        return f"no token was handed over from {prefill} to {decode}"
    print(f"{handed_over} tokens went from {prefill} to {decode} by {headers.get('x-baton-kv-transport')}")
    return None


def main() -> int:
    """Retry until a response is right, because workers may still be loading. Return the exit status."""
    end_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            why = fault(*complete())
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
