"""A running cluster, examined: its router, each worker, what they have in common, and every link between two of them.

1. The router says which workers there are.
2. Each worker is asked about itself, all at once.
3. What they said is compared.
4. One link after the other is measured, so that none is in the way of another: for every ordered pair of workers with
   equal blocks, the one reads from the other. A handed-over prompt goes from a prefill to a decode worker; a prefix is
   pulled by any worker from any other.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import httpx

from baton.doctor.compare import compare
from baton.doctor.finding import Finding, failure, ok, warning
from baton.doctor.link import check_link
from baton.doctor.report import Section
from baton.doctor.worker import ExaminedWorker, examine_worker, probe_link
from baton.process.states import ProcessReport, process_reports
from baton.rpc.peers import Channels
from baton.rpc.router_client import ServerError, check, connect
from baton.rpc.tls import Security

READ_TIMEOUT_S = 10.0

Told = Callable[[str], None]  # hears what is being done


@dataclass(frozen=True, slots=True)
class RouterAddress:
    """Where a router is, and what it and its workers want to see."""

    url: str
    api_key: str | None = None
    security: Security | None = None  # None: workers speak plaintext
    https: ssl.SSLContext | None = None  # how an https:// router is checked; None: as the system does


@dataclass(frozen=True, slots=True)
class Pair:
    """Two workers, one of which reads from the other."""

    reader: ExaminedWorker
    owner: ExaminedWorker

    def __str__(self) -> str:
        return f"{self.reader.name} ({self.reader.role}) reads from {self.owner.name} ({self.owner.role})"


def examine_cluster(router: RouterAddress, max_links: int, told: Told) -> list[Section]:
    """Examines a router's cluster, at most `max_links` links of it."""
    url = router.url
    try:
        with connect(url, READ_TIMEOUT_S, router.api_key, router.https) as client:
            response = client.get("/workers")
            check(response)
            content: object = response.json()
    except (httpx.TransportError, ServerError, ValueError) as error:
        remedy = "name the router by --url, and see whether `baton status` reaches it"
        return [Section("router", [failure("router-unreachable", f"{url}: {error}", remedy)])]
    match content:
        case {"router": Mapping() as state, "workers": list() as workers}:
            sections = [Section("router", check_router(url, state, workers))]
            if restarts := check_processes(process_reports(content)):
                sections.append(Section("processes", restarts))
            return [*sections, *asyncio.run(_examine_workers(workers, Channels(router.security), max_links, told))]
    return [Section("router", [failure("router-unreachable", f"{url} is no router", "name the router by --url")])]


def check_router(url: str, state: Mapping[str, object], workers: Sequence[Mapping[str, object]]) -> list[Finding]:
    """What the router says of itself and of its connections."""
    findings = [
        failure(
            "worker-not-connected",
            f"{worker.get('address')}: {worker.get('last_error') or worker.get('state')}",
            "see the worker's log, and whether the router's machine reaches its address",
        )
        for worker in workers
        if worker.get("state") not in ("ready", "draining", "drained")
    ]
    if not state.get("ready"):
        findings.append(failure("router-not-ready", "it takes no requests", "start a decode worker that it can reach"))
    if state.get("degraded"):
        remedy = "wait a moment; if it stays so, a worker's snapshot does not come: see the router's log"
        findings.append(warning("router-degraded", "it does not know yet what every worker has cached", remedy))
    registry = state.get("registry")
    if isinstance(registry, Mapping) and not registry.get("connected", True):
        found = f"the router has lost {registry.get('name')}: {registry.get('error')}"
        findings.append(
            warning("registry-lost", found, "baton doctor --registry URL on the router's machine says more")
        )
    return findings or [ok("router", f"{url} serves {state.get('model')} with {len(workers)} workers")]


def check_processes(reports: Sequence[ProcessReport]) -> list[Finding]:
    """Return a finding for each process that died lately; its supervisor goes on to restart it."""
    remedy = "see its log: `baton serve` prints where the logs are"
    down = [failure("process-down", report.describe(), remedy) for report in reports if report.is_down]
    return down + [
        warning("process-restarted", report.describe(), remedy)
        for report in reports
        if report.died_recently and not report.is_down
    ]


async def _examine_workers(
    rows: Sequence[Mapping[str, object]], channels: Channels, max_links: int, told: Told
) -> list[Section]:
    try:
        told(f"asking {len(rows)} workers")
        addresses = [str(row.get("address")) for row in rows]
        answers = await asyncio.gather(*(examine_worker(address, channels) for address in addresses))
        sections = [_about(address, answer) for address, answer in zip(addresses, answers, strict=True)]
        workers = [answer for answer in answers if isinstance(answer, ExaminedWorker)]
        if not workers:
            return sections
        sections.append(Section("workers compared", compare(workers)))
        return [*sections, *await _measure_links(workers, max_links, channels, told)]
    finally:
        await channels.close()


def _about(address: str, answer: ExaminedWorker | Finding) -> Section:
    if isinstance(answer, Finding):
        return Section(f"worker at {address}", [answer])
    return Section(f"{answer.role} worker {answer.name}", answer.findings, versions=answer.versions)


def choose_pairs(workers: Sequence[ExaminedWorker], max_links: int) -> list[Pair]:
    """Every ordered pair of workers that may exchange KV and can be asked; where that is too many, an even choice."""
    pairs = [
        Pair(reader, owner)
        for reader, owner in permutations((worker for worker in workers if worker.versions), 2)
        if reader.description.fingerprint == owner.description.fingerprint
    ]
    if len(pairs) <= max_links:
        return pairs
    return [pairs[index * len(pairs) // max_links] for index in range(max_links)]


async def _measure_links(
    workers: Sequence[ExaminedWorker], max_links: int, channels: Channels, told: Told
) -> list[Section]:
    sections = []
    pairs = choose_pairs(workers, max_links)
    for number, pair in enumerate(pairs, 1):
        told(f"link {number} of {len(pairs)}: {pair}")
        links = await probe_link(pair.reader, pair.owner, channels)
        if isinstance(links, Finding):
            sections.append(Section(str(pair), [links]))
        else:
            setting = pair.reader.description.transport
            sections.append(Section(str(pair), [check_link(link, setting) for link in links], links))
    return sections
