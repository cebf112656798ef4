"""Checks of a tree that is to be released: it is committed, and has one version, which its changelog describes."""

import re
import subprocess
import tomllib
from pathlib import Path

import yaml

PYPROJECT, CHANGELOG, CHART, BAKE = "pyproject.toml", "CHANGELOG.md", "helm/baton/Chart.yaml", "docker-bake.hcl"
BAKE_VERSION = re.compile(r'variable "VERSION" \{\s*default = "([^"]*)"')


def git(root: Path, *words: str) -> str:
    """Return the output of a git command. Raises CalledProcessError."""
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def version_of(root: Path) -> str:
    """Return the version in pyproject.toml, which the other files repeat."""
    return str(tomllib.loads((root / PYPROJECT).read_text(encoding="utf-8"))["project"]["version"])


def versions(root: Path) -> dict[str, str]:
    """Return the version that each file names, by what it is the version of."""
    chart = yaml.safe_load((root / CHART).read_text(encoding="utf-8"))
    image = BAKE_VERSION.search((root / BAKE).read_text(encoding="utf-8"))
    return {
        f"{PYPROJECT}: version": version_of(root),
        f"{CHART}: version": str(chart["version"]),
        f"{CHART}: appVersion": str(chart["appVersion"]),
        f"{BAKE}: VERSION": "none" if image is None else image[1],
    }


def problems(root: Path) -> list[str]:
    """Return why the tree cannot be released; none if it can."""
    version, found = version_of(root), []
    if changed := git(root, "status", "--porcelain", "--untracked-files=all", "--ignore-submodules=none"):
        found.append(f"the tree is dirty; commit or remove:\n{changed}")
    found += [f"{name} is {each}, not {version}" for name, each in versions(root).items() if each != version]
    heading = re.compile(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", re.MULTILINE)
    if heading.search((root / CHANGELOG).read_text(encoding="utf-8")) is None:
        found.append(f"{CHANGELOG} has no section `## [{version}] - YYYY-MM-DD`")
    tag = f"v{version}"
    if git(root, "tag", "--list", tag) and git(root, "rev-list", "-n1", tag) != git(root, "rev-parse", "HEAD"):
        found.append(f"the tag {tag} is another commit; raise the version")
    return found
