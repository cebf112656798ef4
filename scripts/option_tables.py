"""Generator of the option tables in docs/ from the fields of the configs; --check only compares.

A table is between `<!-- options: SOURCE -->` and `<!-- end of options -->`. Names after SOURCE select options.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from baton.deployment.local.cluster_config import (
    ROUTER_PLANNED,
    WORKER_PLANNED,
    cluster_options,
    engine_options,
    router_options,
    worker_options,
)
from baton.deployment.ray.options import AutoscalingOptions, ReplicaOptions
from baton.deployment.ray.settings import SharedOptions
from baton.membership.rendezvous.config import RendezvousConfig
from baton.router.config import RouterConfig
from baton.settings.flags import default_text
from baton.settings.options import KINDS, Option, options_of
from baton.worker.config import WorkerConfig

DOCS = Path(__file__).resolve().parents[1] / "docs"
TABLE = re.compile(r"(<!-- options: ([\w ]+) -->\n).*?(<!-- end of options -->)", re.DOTALL)


def sources() -> dict[str, Mapping[str, Option]]:
    """Return the options of each source by name."""
    worker, router = options_of(WorkerConfig), options_of(RouterConfig)
    return {
        "serve": {**cluster_options(), **worker_options()},
        "engine": engine_options(),
        "router": router_options(),
        "worker_process": {name: worker[name] for name in worker if name in WORKER_PLANNED},
        "router_process": {name: router[name] for name in router if name in ROUTER_PLANNED},
        "rendezvous": options_of(RendezvousConfig),
        "ray": options_of(SharedOptions),
        "ray_replicas": options_of(ReplicaOptions),
        "ray_autoscaling": options_of(AutoscalingOptions),
    }


def table(options: Mapping[str, Option]) -> str:
    """Return a Markdown table of the options that are not hidden."""
    rows = [
        f"| `{option.name}` | {_values(option)} | {_default(option)} | {option.help.text} |".replace("|  |", "| |")
        for option in options.values()
        if not option.help.hidden
    ]
    return "\n".join(["| key | values | default | meaning |", "|---|---|---|---|", *rows, ""])


def _values(option: Option) -> str:
    if option.help.choices:
        return ", ".join(f"`{choice}`" for choice in option.help.choices)
    kind = "a size" if option.is_size else KINDS[option.kind]
    return f"{kind} {option.help.limits}".strip().removeprefix("a ")


def _default(option: Option) -> str:
    text = default_text(option)
    return f"`{text}`" if text else "required" if option.required else ""


def generated(page: str) -> str:
    """Return the page with current tables. Raises KeyError for an unknown source or option."""

    def replaced(match: re.Match[str]) -> str:
        source, *names = match[2].split()
        options = sources()[source]
        return match[1] + table({name: options[name] for name in names or options}) + match[3]

    return TABLE.sub(replaced, page)


def main() -> int:
    """Run the script, and return the exit status."""
    stale = [
        path for path in sorted(DOCS.glob("*.md")) if path.read_text("utf-8") != generated(path.read_text("utf-8"))
    ]
    for path in stale:
        if "--check" in sys.argv[1:]:
            print(f"{path} has old option tables: run python scripts/option_tables.py")
        else:
            path.write_text(generated(path.read_text("utf-8")), encoding="utf-8")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
