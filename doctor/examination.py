"""The examination by `baton doctor`: machine, local links, registry, cluster."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from baton.doctor.cluster import OnProgress, RouterAddress, examine_cluster
from baton.doctor.finding import Finding, failure
from baton.doctor.link import check_link
from baton.doctor.local_links import measure_local_links
from baton.doctor.machine import ENGINE_MODULES, examine_machine
from baton.doctor.packages import package_versions
from baton.doctor.registry import check_registry
from baton.doctor.report import Section
from baton.doctor.storage import check_kv_store, check_weights_directory
from baton.settings.registry_url import RegistryUrl

MODULES = (*ENGINE_MODULES, "baton.router.index.native.prefix_index")


@dataclass(frozen=True, slots=True)
class Storage:
    """Places that workers of this machine will read, as their options name them."""

    weights_directory: Path | None = None  # of --weights-offload-dir
    model: Path | None = None  # checkpoint whose weights it shall hold
    kv_stores: Sequence[str] = ()  # of --kv-store and --kv-disk


def examine(
    router: RouterAddress | None,
    registry: RegistryUrl | None,
    storage: Storage,
    transport: str,
    max_links: int,
    on_progress: OnProgress,
) -> list[Section]:
    """Examine this machine, then the given storage, registry and cluster; return the report's sections."""
    sections = [Section("this machine", examine_machine(modules=MODULES), versions=package_versions())]
    on_progress("measuring the transports between two processes")
    sections.append(_local_links(transport))
    if storage != Storage():
        on_progress("measuring the storage")
        sections.append(Section("storage", _storage_findings(storage)))
    if registry is not None:
        on_progress(f"asking {registry}")
        sections.append(Section("registry", asyncio.run(check_registry(registry))))
    if router is not None:
        on_progress(f"asking {router.url}")
        sections += examine_cluster(router, max_links, on_progress)
    return sections


def _storage_findings(storage: Storage) -> list[Finding]:
    findings = [check_kv_store(place) for place in storage.kv_stores]
    if storage.weights_directory is not None:
        findings += check_weights_directory(storage.weights_directory, storage.model)
    return findings


def _local_links(transport: str) -> Section:
    about = f"transports between two processes of this machine, with --transport {transport}"
    try:
        links = measure_local_links(transport)
    except (OSError, EOFError) as error:
        found = f"the other process of the measurement ended: {type(error).__name__}: {error}"
        return Section(about, [failure("link-unusable", found, "its output above has the reason")])
    return Section(about, [check_link(link, transport) for link in links], links)
