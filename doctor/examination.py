"""All that `baton doctor` examines, in order."""

import asyncio

from baton.doctor.cluster import RouterAddress, Told, examine_cluster
from baton.doctor.finding import failure
from baton.doctor.link import check_link
from baton.doctor.local_links import measure_local_links
from baton.doctor.machine import ENGINE_MODULES, examine_machine
from baton.doctor.packages import package_versions
from baton.doctor.registry import check_registry
from baton.doctor.report import Section
from baton.settings.registry_url import RegistryUrl

MODULES = (*ENGINE_MODULES, "baton.router.index.native.prefix_index")


def examine(
    router: RouterAddress | None, registry: RegistryUrl | None, transport: str, max_links: int, told: Told
) -> list[Section]:
    """This machine, then the registry and the cluster that were named."""
    sections = [Section("this machine", examine_machine(modules=MODULES), versions=package_versions())]
    told("measuring the transports between two processes")
    sections.append(_local_links(transport))
    if registry is not None:
        told(f"asking {registry}")
        sections.append(Section("registry", asyncio.run(check_registry(registry))))
    if router is not None:
        told(f"asking {router.url}")
        sections += examine_cluster(router, max_links, told)
    return sections


def _local_links(transport: str) -> Section:
    about = f"transports between two processes of this machine, asked for {transport}"
    try:
        links = measure_local_links(transport)
    except (OSError, EOFError) as error:
        found = f"the other process of the measurement ended: {type(error).__name__}: {error}"
        return Section(about, [failure("link-unusable", found, "what it wrote above says why")])
    return Section(about, [check_link(link, transport) for link in links], links)
