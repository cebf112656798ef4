"""Generator of the chart's Grafana dashboards from scripts/dashboards/; --check only compares."""

import sys
from pathlib import Path

from scripts.dashboards.grafana import grafana_json
from scripts.dashboards.objectives import OBJECTIVES
from scripts.dashboards.operations import OPERATIONS

DIRECTORY = Path(__file__).resolve().parents[1] / "helm" / "baton" / "dashboards"


def main() -> int:
    """Run the script, and return the exit status."""
    is_check = "--check" in sys.argv[1:]
    stale = []
    for board in (OPERATIONS, OBJECTIVES):
        path, text = DIRECTORY / f"{board.name}.json", grafana_json(board)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if is_check:
            print(f"{path} is old: run python -m scripts.grafana_dashboards")
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if stale and is_check else 0


if __name__ == "__main__":
    sys.exit(main())
