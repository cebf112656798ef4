"""The table of `baton cache stats`."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from baton.cli.display.status_table import WorkerRow

COLUMNS = ("worker", "tier", "blocks", "bytes", "hits", "saved", "pins", "pinned blocks")
POOL = "kv_cache"


def cache_table(rows: Sequence[WorkerRow]) -> Table:
    """Return a table with a row for the KV cache of each worker, and one for each store below it."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    lines = [cells for row in rows for cells in _cells(row)]
    for index, title in enumerate(COLUMNS):
        width = max(len(title), *(len(line[index]) for line in lines), 0)
        table.add_column(title, justify="right" if index > 1 else "left", no_wrap=True, min_width=width)
    for line in lines:
        table.add_row(*line)
    return table


def _cells(row: WorkerRow) -> Iterator[tuple[str, ...]]:
    name = row.text("worker_id") or row.text("address")
    found, asked = row.load("num_cached_tokens"), row.load("num_looked_up_tokens")
    share = f" ({100 * int(found) / int(asked):.0f}%)" if found and asked and int(asked) else ""
    blocks = row.text("cached_blocks")
    num_bytes = str(int(blocks) * int(row.text("block_bytes"))) if blocks and row.text("block_bytes") else ""
    hits = f"{found} tokens{share}" if found else ""
    yield name, POOL, blocks, num_bytes, hits, "", row.load("num_pins"), row.load("num_pinned_blocks")
    tiers = row.worker.get("kv_tiers")
    for tier in tiers if isinstance(tiers, list) else ():
        if isinstance(tier, Mapping):
            sizes = (_number(tier, name) for name in ("num_blocks", "num_bytes"))
            fetched, saved = (f"{tier.get(each, 0)} blocks" for each in ("fetched_blocks", "saved_blocks"))
            yield "", str(tier.get("name")), *sizes, fetched, saved, "", ""


def _number(tier: Mapping[str, object], name: str) -> str:
    """Return a number; empty for 0, which a store reports that does not know it."""
    return str(tier.get(name) or "")
