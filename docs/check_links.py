"""Check links inside the built site and of Markdown files: each file and each anchor must exist.

    python docs/check_links.py docs/_build/html README.md CHANGELOG.md

Sphinx checks the references that it resolves itself. This one reads what came out, so that it also
sees links in raw HTML, outputs of notebooks and included files.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Pages of Sphinx itself, which refer to anchors that their scripts make.
GENERATED = {"search.html", "genindex.html", "py-modindex.html"}


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what this tag refers to, and what may refer to it."""
        given = dict(attrs)
        for name in ("id", "name"):
            if given.get(name):
                self.anchors.add(str(given[name]))
        for name in ("href", "src"):
            if given.get(name):
                self.links.add(str(given[name]))


def broken(root: Path) -> list[str]:
    """Return a line for each link of the site that leads nowhere."""
    found = (path for path in root.rglob("*.html") if "_static" not in path.parts)
    pages = {path.resolve(): Page(path.read_text()) for path in found}
    lines = []
    for path, page in pages.items():
        if path.name in GENERATED:
            continue
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.exists():
                lines.append(f"{path.relative_to(root.resolve())}: no file for {link}")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                lines.append(f"{path.relative_to(root.resolve())}: no anchor for {link}")
    return lines


def broken_in_markdown(path: Path) -> list[str]:
    """Return a line for each relative link of a Markdown file that leads nowhere."""
    found = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text())
    relative = (link for link in found if not urlsplit(link).scheme)
    return [f"{path}: no file for {link}" for link in relative if not (path.parent / link).exists()]


def main() -> None:
    """Print what is broken, and fail if anything is."""
    site, *files = map(Path, sys.argv[1:])
    lines = broken(site) + [line for file in files for line in broken_in_markdown(file)]
    print("\n".join(lines))
    if lines:
        raise SystemExit(f"{len(lines)} broken links")


if __name__ == "__main__":
    main()
