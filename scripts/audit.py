"""Looks the installed packages up in PyPI's list of known vulnerabilities, and fails if one has any.

Where that list cannot be reached it says so and does not fail: other checks go on on machines without a network.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import distributions

import requests

PROBE_URL = "https://pypi.org/pypi/requests/2.19.0/json"  # has some: a mirror may list none at all
TIMEOUT_S = 15
OURS = "baton-serve"
IGNORED: Mapping[str, str] = {}  # why a vulnerability, by its id, is none here


def unreachable() -> str | None:
    """Why the list cannot be asked; None if it can."""
    try:
        answer = requests.get(PROBE_URL, timeout=TIMEOUT_S)
        answer.raise_for_status()
        return None if answer.json().get("vulnerabilities") else f"{PROBE_URL} lists no vulnerability"
    except (requests.RequestException, ValueError) as error:
        return str(error)


def installed() -> list[str]:
    """What is installed, as requirements; a build's local label (+cpu) is not PyPI's."""
    versions = {found.metadata["Name"]: found.version for found in distributions()}
    return sorted(f"{name}=={version.partition('+')[0]}" for name, version in versions.items() if name != OURS)


def main() -> int:
    """The exit status."""
    if reason := unreachable():
        print(f"audit: nothing was looked up, PyPI's list cannot be asked here: {reason}")
        return 0
    packages = installed()
    print(f"audit: {len(packages)} packages", *(f"{each} is ignored: {why}" for each, why in IGNORED.items()), sep="\n")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(packages))
        file.flush()
        asked = ("-r", file.name, "--disable-pip", "--no-deps", "--progress-spinner=off", "--desc=off")
        ignored = [f"--ignore-vuln={each}" for each in IGNORED]
        return subprocess.run([sys.executable, "-m", "pip_audit", *asked, *ignored], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
