"""Generator of the tables in docs/reference/ from the code; --check only compares.

A table is between `<!-- reference: NAME -->` and `<!-- end of reference -->`.
"""

import logging
import sys
from pathlib import Path

from scripts.reference.dashboards import objectives, operations
from scripts.reference.endpoints import grpc_endpoints, http_endpoints
from scripts.reference.errors import errors, other_errors
from scripts.reference.headers import request_headers, response_headers
from scripts.reference.matrix import matrix, matrix_notes, moves
from scripts.reference.metrics import router_metrics, worker_metrics
from scripts.reference.tables import filled
from scripts.reference.vllm_metrics import vllm_absent, vllm_metrics

PAGES = Path(__file__).resolve().parents[1] / "docs" / "reference"
TABLES = {
    "errors": errors,
    "grpc_endpoints": grpc_endpoints,
    "http_endpoints": http_endpoints,
    "matrix": matrix,
    "matrix_notes": matrix_notes,
    "moves": moves,
    "objectives_panels": objectives,
    "operations_panels": operations,
    "other_errors": other_errors,
    "request_headers": request_headers,
    "response_headers": response_headers,
    "router_metrics": router_metrics,
    "vllm_absent": vllm_absent,
    "vllm_metrics": vllm_metrics,
    "worker_metrics": worker_metrics,
}


def main() -> int:
    """Run the script, and return the exit status."""
    logging.disable()  # the table of errors makes one of each kind
    stale = []
    for path in sorted(PAGES.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        current = filled(text, TABLES)
        if current == text:
            continue
        stale.append(path)
        if "--check" in sys.argv[1:]:
            print(f"{path} has old tables: run python -m scripts.reference_tables")
        else:
            path.write_text(current, encoding="utf-8")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
