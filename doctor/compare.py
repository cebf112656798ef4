"""Consistency checks over the workers of a cluster: pure functions over their reports."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from baton.doctor.finding import Finding, failure, ok, warning
from baton.doctor.worker import ExaminedWorker
from baton.protos.worker_pb2 import WorkerDescription

ABSENT = "not installed"


def compare(workers: Sequence[ExaminedWorker]) -> list[Finding]:
    """Return a finding for each difference, and for each reason why the workers cannot serve together."""
    findings = [*_roles(workers), *_names(workers), *_fingerprints(workers), *_versions(workers)]
    for check, what, remedy, value_of in (
        ("models-differ", "the model", "give the router both (--also-serve)", lambda each: each.model),
        ("block-sizes-differ", "the block size", "start all with the same --block-size", lambda each: each.block_size),
        ("transports-differ", "the transport", "start all with the same --transport", lambda each: each.transport),
    ):
        findings += _differing(workers, check, what, remedy, value_of)
    return findings or [
        ok("workers-alike", f"{len(workers)} workers with the same model, fingerprint, transport and versions")
    ]


def _roles(workers: Sequence[ExaminedWorker]) -> list[Finding]:
    roles = [worker.role for worker in workers]
    if any(role in ("decode", "both") for role in roles):
        return []
    return [failure("no-decode-worker", f"{len(roles)} workers, none of which decodes", "start a decode worker")]


def _names(workers: Sequence[ExaminedWorker]) -> list[Finding]:
    shared = {name: group for name, group in _grouped(workers, lambda worker: worker.name).items() if len(group) > 1}
    return [
        warning(
            "worker-id-shared",
            f"{name} is the id of {', '.join(worker.address for worker in group)}",
            "give each worker a unique --worker-id: hints and responses refer to workers by it",
        )
        for name, group in shared.items()
    ]


def kv_fingerprint(worker: ExaminedWorker) -> str:
    """Return the fingerprint that is equal for workers that exchange KV."""
    return worker.description.pool.fingerprint or worker.description.fingerprint


def _fingerprints(workers: Sequence[ExaminedWorker]) -> list[Finding]:
    """Check fingerprints: KV is exchanged only between equal ones, so a prefill worker needs an equal decode worker."""
    groups = _grouped(workers, kv_fingerprint)
    if len(groups) < 2:
        return []
    remedy = (
        "serve the same checkpoint, dtypes and block size everywhere, or wait until the upgrade is complete; "
        "quantizations of one model need --allow-mixed-quantization on all workers"
    )
    unmatched = [
        worker.name
        for group in groups.values()
        for worker in group
        if worker.role == "prefill" and not any(each.role == "decode" for each in group)
    ]
    findings = [warning("fingerprints-differ", _values_by_worker("the fingerprint", groups), remedy)]
    if unmatched:
        found = f"no decode worker has the fingerprint of {', '.join(unmatched)}: their prefills cannot be used"
        findings.append(failure("fingerprint-unmatched", found, remedy))
    return findings


def _versions(workers: Sequence[ExaminedWorker]) -> list[Finding]:
    reporting = [worker for worker in workers if worker.versions]
    packages = sorted({name for worker in reporting for name in worker.versions})
    remedy = "install the same versions everywhere: make setup from one checkout, or one container image"
    return [
        warning("versions-differ", _values_by_worker(package, groups), remedy)
        for package in packages
        if len(groups := _by_version(reporting, package)) > 1
    ]


def _by_version(workers: Sequence[ExaminedWorker], package: str) -> dict[str, list[ExaminedWorker]]:
    return _grouped(workers, lambda worker: worker.versions.get(package, ABSENT))


def _differing(
    workers: Sequence[ExaminedWorker],
    check: str,
    what: str,
    remedy: str,
    value_of: Callable[[WorkerDescription], object],
) -> list[Finding]:
    groups = _grouped(workers, lambda worker: str(value_of(worker.description)))
    return [warning(check, _values_by_worker(what, groups), remedy)] if len(groups) > 1 else []


def _grouped(
    workers: Sequence[ExaminedWorker], key: Callable[[ExaminedWorker], str]
) -> dict[str, list[ExaminedWorker]]:
    groups: defaultdict[str, list[ExaminedWorker]] = defaultdict(list)
    for worker in workers:
        groups[key(worker)].append(worker)
    return dict(groups)


def _values_by_worker(what: str, groups: dict[str, list[ExaminedWorker]]) -> str:
    values = [f"{value} ({', '.join(worker.name for worker in group)})" for value, group in groups.items()]
    return f"{what} is {', '.join(values)}"
