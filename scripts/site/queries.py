"""Queries of readers, and the page that must be among the first three; `make docs-check` asks the built site.

The search is the theme's own code, on the built index (`search.mjs`).
"""

import json
import subprocess
import sys
from pathlib import Path

NUM_SHOWN = 3
SCRIPT = Path(__file__).with_name("search.mjs")
QUERIES = {  # by query: the page, or its section
    # Symptoms.
    "503 no decode worker": "troubleshooting.html#503-no-decode-worker-is-ready-service-unavailable",
    "CUDA out of memory": "troubleshooting.html#cuda-out-of-memory-out-of-memory-oom-killed",
    "OOMKilled": "troubleshooting.html#cuda-out-of-memory-out-of-memory-oom-killed",
    "connection refused": "troubleshooting.html#connection-refused-cannot-connect-to-the-server",
    "address already in use": "troubleshooting.html#address-already-in-use-port-is-taken",
    "slow first token": "troubleshooting.html#slow-first-token-high-ttft",
    "high ttft": "how_to/find_out_why_ttft_is_high.html",
    "tokens differ": "troubleshooting.html#tokens-differ-with-the-same-seed",
    "429 too many requests": "troubleshooting.html#429-too-many-requests-rate-limit",
    "requests hang": "troubleshooting.html#requests-hang-no-response",
    "pods pending": "troubleshooting.html#kubernetes-pods-pending-crashloopbackoff-imagepullbackoff",
    "context length exceeded": "troubleshooting.html#400-context-length-exceeded-prompt-is-too-long",
    "timeout while loading the model": "troubleshooting.html#slow-start-timeout-while-loading-the-model",
    "BatonKVFull": "troubleshooting.html#batonkvfull",
    # Tasks.
    "ttft target": "how_to/set_latency_targets.html",
    "rotate api key": "how_to/set_up_tls_and_keys.html",
    "drain worker": "reliability.html#draining-a-worker",
    "drain a worker": "reliability.html#draining-a-worker",
    "how do I drain a worker?": "reliability.html#draining-a-worker",
    "what happens when the router dies": "faq.html#what-happens-when-a-router-dies",
    "why is the TTFT high?": "how_to/find_out_why_ttft_is_high.html",
    "size of the pools": "how_to/size_the_pools.html",
    "prefill and decode on several machines": "faq.html#how-do-i-run-prefill-and-decode-workers-on-several-machines",
    "pd disaggregation": "faq.html#how-do-i-use-pd-disaggregation-disaggregated-prefill-such-as-2p1d",
    "disaggregated prefill": "faq.html#how-do-i-use-pd-disaggregation-disaggregated-prefill-such-as-2p1d",
    "kv_transfer_config": "faq.html#how-do-i-use-pd-disaggregation-disaggregated-prefill-such-as-2p1d",
    "proxy for prefill and decode": "faq.html#do-i-need-a-proxy-between-prefill-and-decode-workers",
    "how many gpus do i need": "faq.html#how-many-gpus-do-i-need",
    "tensor parallel over several nodes": "parallelism.html",
    "expert parallel": "how_to/serve_a_mixture_of_experts.html",
    "gated model huggingface token": "troubleshooting.html#gated-model-401-from-hugging-face-hugging-face-token",
    "custom chat template": "faq.html#how-do-i-set-my-own-chat-template",
    "which nixl version": "installation.html#tested-versions",
    "add workers dynamically": "faq.html#how-do-i-add-or-remove-workers-dynamically-while-serving",
    "lora adapter": "lora.html",
    "structured output json schema": "api.html#structured-output",
    "function calling": "faq.html#does-it-support-functions-guided-decoding-images-reranking-or-beam-search",
    "kv cache offload to cpu": "faq.html#can-the-kv-cache-be-offloaded-to-cpu-memory-disk-redis-or-s3",
    "kv transfer timeout": "troubleshooting.html#kv-transfer-fails-handover-failures",
    "docker image": "faq.html#is-there-a-docker-image",
    "tool calling": "api.html#tools-and-reasoning",
    "grafana dashboard": "observability.html#dashboards",
    "opentelemetry": "tracing.html",
    "offline batch inference": "offline.html",
    "health check": "reliability.html#health",
    "systemd": "services.html",
    "api key": "how_to/set_up_tls_and_keys.html",
}


def results(site: Path, queries: list[str]) -> list[list[str]]:
    """Return the sections that the site's search finds for each query, the best one of each page, in order."""
    found = subprocess.run(
        ["node", str(SCRIPT), str(site)], input=json.dumps(queries), check=True, stdout=subprocess.PIPE, text=True
    )
    return [[result["section"] for result in pages] for pages in json.loads(found.stdout)]


def misses(site: Path) -> list[str]:
    """Return a line for each query whose page is not among the first three."""
    lines = []
    for (query, wanted), found in zip(QUERIES.items(), results(site, list(QUERIES)), strict=True):
        shown = found[:NUM_SHOWN]
        if wanted not in shown and ("#" in wanted or wanted not in [each.partition("#")[0] for each in shown]):
            lines.append(f"{query!r} finds {', '.join(shown)} instead of {wanted}")
    return lines


if __name__ == "__main__":
    if missed := misses(Path(sys.argv[1])):
        sys.exit("\n".join(missed))
