"""Objects as tests need them."""

from tests.helm.api_server.errors import Json


def config_map(name: str, data: Json | None = None, **metadata: object) -> Json:
    """The simplest object there is."""
    written: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}
    return written if data is None else {**written, "data": data}


def pod(name: str, **metadata: object) -> Json:
    """One container."""
    spec = {"containers": [{"name": "main", "image": "main:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def deployment(name: str, *containers: Json, replicas: int | None = None) -> Json:
    """With these containers."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": list(containers)}}
    spec: Json = {"selector": {"matchLabels": labels}, "template": template}
    if replicas is not None:
        spec["replicas"] = replicas
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def container(name: str, image: str = "image:1", **env: str) -> Json:
    """With these variables."""
    written: Json = {"name": name, "image": image}
    if env:
        written["env"] = [{"name": key, "value": value} for key, value in env.items()]
    return written


def owned_by(owner: Json) -> list[Json]:
    """For the metadata of what it owns."""
    names = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    return [{"apiVersion": owner["apiVersion"], "kind": owner["kind"], **names}]


def names(items: list[Json]) -> list[str]:
    """In their order."""
    return [each["metadata"]["name"] for each in items]
