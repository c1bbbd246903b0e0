"""The long description and the links of the package page, which need the address of the repository.

It is in PROJECT_URL, which the workflow of a release sets. Without it links into the repository become plain text
and images are left out, since a package site has no files to which they could lead.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)\s]+)\)")


class PackagePage(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        address = os.environ.get("PROJECT_URL", "").rstrip("/")
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": with_absolute_links(text, address)}
        pages = {
            "Repository": "",
            "Documentation": "/blob/HEAD/docs/index.md",
            "Changelog": "/blob/HEAD/CHANGELOG.md",
        }
        metadata["urls"] = {name: address + path for name, path in pages.items() if address}


def with_absolute_links(text: str, address: str) -> str:
    """Return Markdown whose links lead to the repository, and whose images are loaded from there."""

    def absolute(match: re.Match[str]) -> str:
        mark, words, path = match.groups()
        if not address:
            return "" if mark else words
        return f"{mark}[{words}]({address}/{'raw' if mark else 'blob'}/HEAD/{path})"

    return _LINK.sub(absolute, text)
