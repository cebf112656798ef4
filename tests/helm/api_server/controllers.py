"""What makes wishes come true in a cluster: small stand-ins for its controllers and its nodes."""

from collections.abc import Callable, Coroutine

from tests.helm.api_server.api import Api, Writing
from tests.helm.api_server.errors import ApiError, Json
from tests.helm.api_server.objects import now
from tests.helm.api_server.store import ObjectKey

Exit = Callable[[Json], int | None]  # a pod's exit code; None: it runs on


def ends_well(pod: Json) -> int | None:
    """Pods that are to end do, at once and well."""
    return None if pod["spec"].get("restartPolicy", "Always") == "Always" else 0


def node(exit_of: Exit = ends_well) -> Callable[[Api], Coroutine[None, None, None]]:
    """Runs every pod and every job, has every volume, and says of every deployment that its replicas are there."""

    async def run(api: Api) -> None:
        num_seen = 0
        while not api.store.ended:
            await api.store.next_change(num_seen)
            for change in api.store.changes[num_seen:]:
                num_seen += 1
                if change.now is not None:
                    _care(api, change.key, exit_of)

    return run


def _care(api: Api, key: ObjectKey, exit_of: Exit) -> None:
    written = api.store.get(key)
    if written is None:
        return
    status: Json | None = None
    match key.type.kind:
        case "Pod" if written.get("status", {}).get("phase") == "Pending":
            status = _pod_status(written, exit_of(written))
        case "Job" if "conditions" not in written.get("status", {}):
            condition = {"type": "Complete", "status": "True", "lastTransitionTime": now()}
            times = {"startTime": now(), "completionTime": now()}
            status = {"conditions": [condition], "succeeded": 1, **times}
        case "PersistentVolumeClaim":
            status = {"phase": "Bound", "accessModes": written["spec"]["accessModes"]}
        case "Deployment":
            status = _deployment_status(written)
    if status is not None and status != written.get("status"):
        try:
            api.update(key, {**written, "status": status}, Writing("node", subresource="status"))
        except ApiError as error:
            raise RuntimeError(f"the status of {key.type.kind} {key.name} cannot be written: {error}") from error


def _pod_status(pod: Json, code: int | None) -> Json:
    state: Json = {"running": {"startedAt": now()}}
    phase = "Running"
    if code is not None:
        state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now()}}
        phase = "Failed" if code else "Succeeded"
    containers = [
        {"name": each["name"], "image": each["image"], "imageID": "", "restartCount": 0, "ready": code is None}
        | {"state": state}
        for each in pod["spec"]["containers"]
    ]
    ready = {"type": "Ready", "status": str(code is None), "lastTransitionTime": now()}
    return {"phase": phase, "conditions": [ready], "containerStatuses": containers, "startTime": now()}


def _deployment_status(deployment: Json) -> Json:
    replicas = deployment["spec"].get("replicas", 1)
    counts = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas", "availableReplicas"), replicas)
    available = {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable", "message": ""}
    generation = deployment["metadata"]["generation"]
    return {"observedGeneration": generation, "conditions": [available], **{k: v for k, v in counts.items() if v}}
