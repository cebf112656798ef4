"""The examination of a running cluster: router, workers, their consistency, and the links between them.

1. The router lists its workers.
2. All workers examine themselves at the same time.
3. Their reports are compared.
4. The links are measured one after the other, so that measurements do not disturb each other. For every ordered pair
   of workers with equal fingerprints, one reads from the other: a handover goes from a prefill to a decode worker,
   and any worker may pull a prefix from any other.
"""

import asyncio
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import httpx

from baton.doctor.compare import compare, kv_fingerprint
from baton.doctor.finding import Finding, failure, ok, warning
from baton.doctor.link import check_link
from baton.doctor.report import Section
from baton.doctor.worker import ExaminedWorker, examine_worker, probe_link
from baton.process.states import ProcessReport, process_reports
from baton.rpc.peers import Channels
from baton.rpc.router_client import ServerError, check, connect, json_body
from baton.rpc.tls import Security

READ_TIMEOUT_S = 10.0

OnProgress = Callable[[str], None]  # called with a line of text before each step


@dataclass(frozen=True, slots=True)
class RouterAddress:
    """A router's URL, and the credentials for it and its workers."""

    url: str
    api_key: str | None = None
    security: Security | None = None  # None: workers use plaintext
    https: ssl.SSLContext | None = None  # verifies an https:// router; None: the system's defaults


@dataclass(frozen=True, slots=True)
class Pair:
    """An ordered pair of workers: `reader` reads KV from `owner`."""

    reader: ExaminedWorker
    owner: ExaminedWorker

    def __str__(self) -> str:
        return f"{self.reader.name} ({self.reader.role}) reads from {self.owner.name} ({self.owner.role})"


def examine_cluster(router: RouterAddress, max_links: int, on_progress: OnProgress) -> list[Section]:
    """Examine a router's cluster, with at most `max_links` of its links."""
    url = router.url
    try:
        with connect(url, READ_TIMEOUT_S, router.api_key, router.https) as client:
            response = client.get("/workers")
            check(response)
            content = json_body(response)
    except (httpx.TransportError, ServerError) as error:
        remedy = "pass the router's URL as --url, and check that `baton status` reaches it"
        return [Section("router", [failure("router-unreachable", f"{url}: {error}", remedy)])]
    match content:
        case {"router": Mapping() as state, "workers": list() as workers}:
            sections = [Section("router", check_router(url, state, workers))]
            if restarts := check_processes(process_reports(content)):
                sections.append(Section("processes", restarts))
            return [
                *sections,
                *asyncio.run(
                    _examine_workers(workers, _models(state), Channels(router.security), max_links, on_progress)
                ),
            ]
    return [
        Section("router", [failure("router-unreachable", f"{url} is not a router", "pass the router's URL as --url")])
    ]


def check_router(url: str, state: Mapping[str, object], workers: Sequence[Mapping[str, object]]) -> list[Finding]:
    """Check the router's own state and its connections, from its `/workers` response."""
    findings = [
        failure(
            "worker-not-connected",
            f"{worker.get('address')}: {worker.get('last_error') or worker.get('state')}",
            "see the worker's log, and check that the router's machine can reach its address",
        )
        for worker in workers
        if worker.get("state") not in ("ready", "draining", "drained")
    ]
    remedy = "start a decode worker that it can reach"
    if not state.get("ready"):
        findings.append(failure("router-not-ready", "it accepts no requests", remedy))
    elif idle := [model for model, is_ready in _models(state).items() if not is_ready]:
        findings.append(failure("router-not-ready", f"it accepts no requests for {', '.join(idle)}", remedy))
    if state.get("degraded"):
        remedy = "wait a moment; if it persists, a worker's snapshot is missing: see the router's log"
        findings.append(warning("router-degraded", "it does not have the cache contents of every worker yet", remedy))
    registry = state.get("registry")
    if isinstance(registry, Mapping) and not registry.get("connected", True):
        found = f"the router has lost {registry.get('name')}: {registry.get('error')}"
        findings.append(
            warning("registry-lost", found, "run baton doctor --registry URL on the router's machine for details")
        )
    return findings or [ok("router", f"{url} serves {state.get('model')} with {len(workers)} workers")]


def _models(state: Mapping[str, object]) -> dict[str, bool]:
    """Return whether each model of a router accepts requests; none if the router does not list its models."""
    models = state.get("models")
    listed = [each for each in models if isinstance(each, Mapping)] if isinstance(models, list) else []
    return {str(each.get("model")): bool(each.get("ready")) for each in listed}


def check_processes(reports: Sequence[ProcessReport]) -> list[Finding]:
    """Return a finding for each process that died recently; its supervisor keeps restarting it."""
    remedy = "see its log; `baton serve` prints the log directory"
    down = [failure("process-down", report.describe(), remedy) for report in reports if report.is_down]
    return down + [
        warning("process-restarted", report.describe(), remedy)
        for report in reports
        if report.died_recently and not report.is_down
    ]


async def _examine_workers(
    rows: Sequence[Mapping[str, object]],
    models: Collection[str],
    channels: Channels,
    max_links: int,
    on_progress: OnProgress,
) -> list[Section]:
    """`models`: of the router."""
    try:
        on_progress(f"asking {len(rows)} workers")
        addresses = [str(row.get("address")) for row in rows]
        results = await asyncio.gather(*(examine_worker(address, channels) for address in addresses))
        sections = [_section(address, result) for address, result in zip(addresses, results, strict=True)]
        workers = [result for result in results if isinstance(result, ExaminedWorker)]
        if not workers:
            return sections
        sections += compared(workers, models)
        return [*sections, *await _measure_links(workers, max_links, channels, on_progress)]
    finally:
        await channels.close()


def compared(workers: Sequence[ExaminedWorker], models: Collection[str]) -> list[Section]:
    """Compare the workers; if the router serves several models, those of each of them."""
    if len(models) < 2:
        return [Section("workers compared", compare(workers))]
    groups = {model: [each for each in workers if each.description.model == model] for model in models}
    return [Section(f"workers of {model} compared", compare(group)) for model, group in groups.items() if group]


def _section(address: str, result: ExaminedWorker | Finding) -> Section:
    if isinstance(result, Finding):
        return Section(f"worker at {address}", [result])
    return Section(f"{result.role} worker {result.name}", result.findings, versions=result.versions)


def choose_pairs(workers: Sequence[ExaminedWorker], max_links: int) -> list[Pair]:
    """Return the ordered pairs of workers that may exchange KV and serve the doctor, evenly thinned to `max_links`."""
    pairs = [
        Pair(reader, owner)
        for reader, owner in permutations((worker for worker in workers if worker.versions), 2)
        if kv_fingerprint(reader) == kv_fingerprint(owner)
    ]
    if len(pairs) <= max_links:
        return pairs
    return [pairs[index * len(pairs) // max_links] for index in range(max_links)]


async def _measure_links(
    workers: Sequence[ExaminedWorker], max_links: int, channels: Channels, on_progress: OnProgress
) -> list[Section]:
    sections = []
    pairs = choose_pairs(workers, max_links)
    for number, pair in enumerate(pairs, 1):
        on_progress(f"link {number} of {len(pairs)}: {pair}")
        links = await probe_link(pair.reader, pair.owner, channels)
        if isinstance(links, Finding):
            sections.append(Section(str(pair), [links]))
        else:
            setting = pair.reader.description.transport
            sections.append(Section(str(pair), [check_link(link, setting) for link in links], links))
    return sections
