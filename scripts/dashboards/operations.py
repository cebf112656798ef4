"""The dashboard of operators: traffic, queue, pools, KV, handovers, errors, restarts."""

from scripts.dashboards.board import Board
from scripts.dashboards.request_sections import NOW, QUEUE, TRAFFIC
from scripts.dashboards.worker_sections import CONTROL, HANDOVER, KV, POOLS, TOOLS, WORKERS_ROW

OPERATIONS = Board(
    "operations",
    "Baton: operations",
    "Traffic, queue, pools, KV and handovers of the routers that Prometheus scrapes.",
    (NOW, TRAFFIC, QUEUE, POOLS, KV, HANDOVER, CONTROL, TOOLS, WORKERS_ROW),
)
