"""Table of a router's workers, from its /workers endpoint."""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table

from baton.process.host_memory import in_gib


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table."""

    title: str
    drop_order: int = 0  # on a narrow terminal, the highest is dropped first; 0: never dropped
    right: bool = True


MODEL = "model"  # column that is shown if the workers serve several
COLUMNS = (
    Column("worker", right=False),
    Column(MODEL, 7, right=False),
    Column("role", 6, right=False),
    Column("state", right=False),
    Column("address", 5, right=False),
    Column("running"),
    Column("waiting"),
    Column("queued tokens", 4),
    Column("free KV"),
    Column("cached", 3),
    Column("step", 2),
    Column("handovers"),
    Column("failed", 1),
)
PIN_FIELDS = ("num_pins", "num_pinned_blocks", "num_blocks")
MAX_ADAPTERS = 8  # shown of a worker
TIER_TROUBLE = {"slow_fetches": "fetches ended early", "failures": "writes failed"}
GAP = 2  # characters between columns


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker as the router reports it; missing fields are empty."""

    worker: Mapping[str, object]

    def text(self, name: str) -> str:
        """Return a field of the worker."""
        value = self.worker.get(name)
        return "" if value is None else str(value)

    def load(self, name: str) -> str:
        """Return a field of the worker's load."""
        load = self.worker.get("load")
        value = load.get(name) if isinstance(load, Mapping) else None
        return "" if value is None else str(value)

    def step(self) -> str:
        """Return the recent duration of an engine step, in ms."""
        step_s = self.load("step_s")
        return f"{float(step_s) * 1000:.1f} ms" if step_s else ""

    def free_share(self) -> str:
        """Return the percentage of the pool's blocks that are free."""
        free, total = self.load("num_free_blocks"), self.load("num_blocks")
        return f"{100 * int(free) / int(total):.0f}%" if free and total and int(total) else free

    def transports(self) -> list[str]:
        """Return the transports in use and the reason for each, without duplicates."""
        peers = self.worker.get("peer_transports")
        return list(dict.fromkeys(str(transport) for transport in peers.values())) if isinstance(peers, Mapping) else []

    def tiers(self) -> list[str]:
        """Return what each store below the KV cache holds, and what the worker has fetched from it and saved there."""
        tiers = self.worker.get("kv_tiers")
        return [_tier_line(tier) for tier in tiers if isinstance(tier, Mapping)] if isinstance(tiers, list) else []

    def offload(self) -> str:
        """Return what the worker's steps read of its weights; empty without weights offload."""
        found = self.worker.get("weights_offload")
        if not isinstance(found, Mapping):
            return ""
        stored, read, hits, misses = (
            int(str(found.get(name) or 0)) for name in ("stored_bytes", "read_bytes", "expert_hits", "expert_misses")
        )
        waited_s = float(str(found.get("wait_s") or 0))
        experts = f", {hits / (hits + misses):.0%} of experts found in memory" if hits + misses else ""
        return f"{in_gib(stored)} stored, {in_gib(read)} read, {waited_s:.1f} s waited{experts}"

    def pins(self) -> str:
        """Return what pinned prefixes hold; empty if there is none."""
        num_pins, num_blocks, total = (int(self.load(name) or 0) for name in PIN_FIELDS)
        dropped = self.load("num_dropped_pins")
        if not num_pins and dropped in ("", "0"):
            return ""
        share = f" ({100 * num_blocks / total:.0f}%)" if total else ""
        lost = f", {dropped} dropped for requests" if dropped not in ("", "0") else ""
        return f"{num_pins} pins hold {num_blocks} KV blocks{share}{lost}"

    def adapters(self) -> str:
        """Return the worker's adapters, the resident ones first, and how many fit in a batch; empty without any."""
        match self.worker.get("adapters"):
            case {"max_loras": int() as num_slots, "loaded": Mapping() as loaded} if loaded:
                resident = self._resident()
                names = sorted(map(str, loaded), key=lambda name: (name not in resident, name))
                shown = ", ".join(f"{name} *" if name in resident else name for name in names[:MAX_ADAPTERS])
                more = f" and {len(names) - MAX_ADAPTERS} more" if len(names) > MAX_ADAPTERS else ""
                return f"{shown}{more} (* resident; {num_slots} in a batch)"
        return ""

    def _resident(self) -> set[str]:
        load = self.worker.get("load")
        names = load.get("resident_adapters") if isinstance(load, Mapping) else None
        return set(map(str, names)) if isinstance(names, list) else set()

    def cells(self) -> list[str]:
        """Return the text of each column in COLUMNS."""
        failures = [value for value in (self.load("handover_failures"), self.load("checksum_failures")) if value]
        return [
            self.text("worker_id") or self.text("address"),  # a worker that was never reached has no id yet
            *(self.text(name) for name in (MODEL, "role", "state", "address")),
            *(self.load(name) for name in ("num_running", "num_waiting", "num_queued_tokens")),
            self.free_share(),
            self.text("cached_blocks"),
            self.step(),
            self.load("handovers"),
            str(sum(int(value) for value in failures)) if failures else "",
        ]


def _tier_line(tier: Mapping[str, object]) -> str:
    size, capacity = (int(str(tier.get(name) or 0)) for name in ("num_bytes", "capacity_bytes"))
    used = f" {in_gib(size)} of {in_gib(capacity)}," if capacity else ""
    parts = [f"{tier.get('fetched_blocks')} blocks fetched", f"{tier.get('saved_blocks')} saved"]
    parts += [f"{tier.get(name)} {text}" for name, text in TIER_TROUBLE.items() if tier.get(name)]
    return f"{tier.get('name')}:{used} {', '.join(parts)}"


def worker_rows(content: object) -> list[WorkerRow]:
    """Return the workers in a /workers response. Raises ValueError if it has no list of workers."""
    match content:
        case {"workers": list() as workers} if all(isinstance(worker, Mapping) for worker in workers):
            return [WorkerRow(worker) for worker in workers]
    raise ValueError("the response has no list of workers")


def status_table(rows: list[WorkerRow], width: int) -> Table:
    """Return a table of at most `width` characters, or wider if the columns that are never dropped need it."""
    cells = [row.cells() for row in rows]
    widths = [max(len(column.title), *(len(line[i]) for line in cells), 0) for i, column in enumerate(COLUMNS)]
    shown = [i for i, column in enumerate(COLUMNS) if not column.drop_order or any(line[i] for line in cells)]
    if len({row.text(MODEL) for row in rows if row.text(MODEL)}) < 2:
        shown = [i for i in shown if COLUMNS[i].title != MODEL]
    for index in sorted((i for i in shown if COLUMNS[i].drop_order), key=lambda i: -COLUMNS[i].drop_order):
        if sum(widths[i] + GAP for i in shown) > width:
            shown.remove(index)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for index in shown:
        column = COLUMNS[index]
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True)
    for line in cells:
        table.add_row(*(line[index] for index in shown))
    return table


def tier_lines(rows: list[WorkerRow]) -> list[str]:
    """Return one line for each store below a worker's KV cache."""
    return [f"{row.text('worker_id')}: KV store {line}" for row in rows for line in row.tiers()]


def offload_lines(rows: list[WorkerRow]) -> list[str]:
    """Return one line for each worker with weights offload."""
    return [f"{row.text('worker_id')}: weights offload {text}" for row in rows if (text := row.offload())]


def pin_lines(rows: list[WorkerRow]) -> list[str]:
    """Return one line for each worker with pinned prefixes."""
    return [f"{row.text('worker_id')}: {line}" for row in rows if (line := row.pins())]


def adapter_lines(rows: list[WorkerRow]) -> list[str]:
    """Return one line for each worker with LoRA adapters."""
    return [f"{row.text('worker_id')}: adapters {text}" for row in rows if (text := row.adapters())]


def transport_lines(rows: list[WorkerRow]) -> list[str]:
    """Return one line for each transport by which a worker reads KV from its peers, with the reason."""
    return [f"{row.text('worker_id')}: KV over {transport}" for row in rows for transport in row.transports()]
