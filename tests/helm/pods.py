"""The pods of a release, and their containers."""

from typing import Any

from tests.helm import charts

POOLS = ("prefill", "decode")


def rendered(*layers: dict[str, Any], is_anew: bool = False) -> list[charts.Manifest]:
    """The objects of values over the least."""
    return charts.render(charts.merged(charts.MODEL, *layers), is_anew=is_anew)


def worker(objects: list[charts.Manifest], pool: str = "decode") -> charts.Manifest:
    """A pool's pod template."""
    return charts.pod_templates(objects)[f"RayService/baton/{pool}"]


def main_container(template: charts.Manifest) -> charts.Manifest:
    """The one that serves."""
    container: charts.Manifest = template["spec"]["containers"][0]
    return container
