"""What the API server says when it does not do what it was asked."""

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]


class ApiError(Exception):
    """An answer other than success, in the API server's own form."""

    def __init__(self, code: int, reason: str, message: str, causes: Sequence[Json] = ()) -> None:
        super().__init__(message)
        self.code, self.reason, self.causes = code, reason, causes

    def status(self) -> Json:
        """The body of the answer."""
        said: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        said |= {"message": str(self), "reason": self.reason, "code": self.code}
        if self.causes:
            said["details"] = {"causes": list(self.causes)}
        return said


def bad_request(message: str) -> ApiError:
    """What was asked makes no sense."""
    return ApiError(400, "BadRequest", message)


def not_found(resource: str, name: str) -> ApiError:
    """There is no such object."""
    return ApiError(404, "NotFound", f'{resource} "{name}" not found')


def no_such_path() -> ApiError:
    """There is no such kind of object either."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(resource: str, name: str) -> ApiError:
    """It was to be created."""
    return ApiError(409, "AlreadyExists", f'{resource} "{name}" already exists')


def conflict(resource: str, name: str, why: str, causes: Sequence[Json] = ()) -> ApiError:
    """Somebody else has changed it."""
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {why}', causes)


def invalid(kind: str, name: str, why: str) -> ApiError:
    """The object would not be one of its kind."""
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {why}')


def forbidden(message: str) -> ApiError:
    """The rights are missing."""
    return ApiError(403, "Forbidden", message)
