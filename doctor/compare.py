"""What the workers of a cluster should have in common: pure functions over what they said."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from baton.doctor.finding import Finding, failure, ok, warning
from baton.doctor.worker import ExaminedWorker
from baton.protos.worker_pb2 import WorkerDescription

ABSENT = "not installed"


def compare(workers: Sequence[ExaminedWorker]) -> list[Finding]:
    """Everything in which they differ, and whether they can serve together at all."""
    findings = [*_roles(workers), *_names(workers), *_fingerprints(workers), *_versions(workers)]
    for check, what, remedy, told in (
        ("models-differ", "the model", "give each model a router of its own", lambda each: each.model),
        ("block-sizes-differ", "the tokens a block", "start all with one --block-size", lambda each: each.block_size),
        ("transports-differ", "the transport setting", "start all with one --transport", lambda each: each.transport),
    ):
        findings += _differing(workers, check, what, remedy, told)
    return findings or [
        ok("workers-alike", f"{len(workers)} workers of one model, fingerprint, transport setting and version")
    ]


def _roles(workers: Sequence[ExaminedWorker]) -> list[Finding]:
    roles = [worker.role for worker in workers]
    if any(role in ("decode", "both") for role in roles):
        return []
    return [failure("no-decode-worker", f"{len(roles)} workers, none of which decodes", "start a decode worker")]


def _names(workers: Sequence[ExaminedWorker]) -> list[Finding]:
    shared = {name: said for name, said in _grouped(workers, lambda worker: worker.name).items() if len(said) > 1}
    return [
        warning(
            "worker-id-shared",
            f"{name} is the id of {', '.join(worker.address for worker in several)}",
            "give each worker a --worker-id of its own: hints and answers name workers by it",
        )
        for name, several in shared.items()
    ]


def _fingerprints(workers: Sequence[ExaminedWorker]) -> list[Finding]:
    """KV goes only between equal fingerprints; a prefill worker without an equal decode worker is idle for ever."""
    groups = _grouped(workers, lambda worker: worker.description.fingerprint)
    if len(groups) < 2:
        return []
    remedy = "serve the same checkpoint, dtypes and block size everywhere, or wait until the upgrade is through"
    lonely = [
        worker.name
        for group in groups.values()
        for worker in group
        if worker.role == "prefill" and not any(each.role == "decode" for each in group)
    ]
    findings = [warning("fingerprints-differ", _said("the fingerprint", groups), remedy)]
    if lonely:
        found = f"no decode worker has the fingerprint of {', '.join(lonely)}, which can prefill for nobody"
        findings.append(failure("fingerprint-unmatched", found, remedy))
    return findings


def _versions(workers: Sequence[ExaminedWorker]) -> list[Finding]:
    telling = [worker for worker in workers if worker.versions]
    packages = sorted({name for worker in telling for name in worker.versions})
    remedy = "install the same everywhere: make setup from one checkout, or one container image"
    return [
        warning("versions-differ", _said(package, groups), remedy)
        for package in packages
        if len(groups := _by_version(telling, package)) > 1
    ]


def _by_version(workers: Sequence[ExaminedWorker], package: str) -> dict[str, list[ExaminedWorker]]:
    return _grouped(workers, lambda worker: worker.versions.get(package, ABSENT))


def _differing(
    workers: Sequence[ExaminedWorker],
    check: str,
    what: str,
    remedy: str,
    told: Callable[[WorkerDescription], object],
) -> list[Finding]:
    groups = _grouped(workers, lambda worker: str(told(worker.description)))
    return [warning(check, _said(what, groups), remedy)] if len(groups) > 1 else []


def _grouped(
    workers: Sequence[ExaminedWorker], told: Callable[[ExaminedWorker], str]
) -> dict[str, list[ExaminedWorker]]:
    groups: defaultdict[str, list[ExaminedWorker]] = defaultdict(list)
    for worker in workers:
        groups[told(worker)].append(worker)
    return dict(groups)


def _said(what: str, groups: dict[str, list[ExaminedWorker]]) -> str:
    said = [f"{value} ({', '.join(worker.name for worker in group)})" for value, group in groups.items()]
    return f"{what} is {', '.join(said)}"
