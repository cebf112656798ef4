"""Links of the pages, from paths in the repository to paths in the site.

The site has the pages of docs/, and the files outside of it that pages link to.
"""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = "repository"  # folder of the site for files outside of docs/
CODE = r"^ *```.*?^ *```|`[^`\n]+`"
LINK = r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
LINK_OR_CODE = re.compile(f"{CODE}|{LINK}", re.DOTALL | re.MULTILINE)


def site_path(source: Path) -> str:
    """Return the path in the site of a file of the repository."""
    docs = ROOT / "docs"
    if source.is_relative_to(docs):
        return source.relative_to(docs).as_posix()
    return f"{OUTSIDE}/{source.relative_to(ROOT).as_posix()}"


def targets(source: Path) -> set[Path]:
    """Return the existing files of the repository that a page links to."""
    found = LINK_OR_CODE.finditer(source.read_text(encoding="utf-8"))
    linked = {Path(os.path.normpath(source.parent / match["target"])) for match in found if match["target"]}
    return {path for path in linked if path.is_file()}


def outside_files() -> set[Path]:
    """Return the files outside of docs/ that its pages link to, directly or over other pages."""
    seen: set[Path] = set()
    waiting = list((ROOT / "docs").glob("**/*.md"))
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        linked = targets(page) - seen
        waiting += [path for path in linked if path.suffix == ".md"]
        seen |= {path for path in linked if path.suffix != ".md"}
    return {path for path in seen if not path.is_relative_to(ROOT / "docs")}


def with_site_links(source: Path, markdown: str) -> str:
    """Return a page whose links are those of the site. Links to folders, which the site does not have, become text."""
    here = Path(site_path(source)).parent

    def replaced(match: re.Match[str]) -> str:
        if not match["target"] or re.match(r"[a-z]+:", match["target"]):
            return match[0]
        target = Path(os.path.normpath(source.parent / match["target"]))
        if target.is_dir():
            return match["text"]
        return f"[{match['text']}]({os.path.relpath(site_path(target), here)}{match['anchor'] or ''})"

    return LINK_OR_CODE.sub(replaced, markdown)
