"""The settings of a policy of the pools' sizes, in a file that may change while the policy runs."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from baton.deployment.autoscaling.settings import ScalingSettings
from baton.settings.config_file import read_config_file

logger = logging.getLogger("ray.serve.baton")  # below the logger whose file Serve shows

Read = Callable[[Mapping[str, object]], ScalingSettings]  # raises ValueError for what makes no sense


class ScalingFile:
    """Owns what the file said when it last made sense.

    Serve restarts every replica when `policy_kwargs` change, and none when a file does that is named there.
    """

    def __init__(self, path: Path, given: Mapping[str, object], read: Read) -> None:
        """The file's keys win over those given. Raises ValueError for a file that makes no sense now."""
        self._path = path
        self._given = given
        self._read = read
        self._error = ""
        self._content = read_config_file(path)
        self._settings = read({**given, **self._content})

    def read(self) -> ScalingSettings:
        """The settings as the file has them now: the same object as before, unless they are others."""
        try:
            content = read_config_file(self._path)
            if content != self._content:
                self._settings, self._content = self._read({**self._given, **content}), content
                logger.info("the settings are those of %s as it is now", self._path)
            self._tell("")
        except ValueError as error:
            self._tell(str(error))
        return self._settings

    def _tell(self, error: str) -> None:
        """Says a new error once."""
        if error and error != self._error:
            logger.warning("the settings stay as they were: %s: %s", self._path, error)
        self._error = error
