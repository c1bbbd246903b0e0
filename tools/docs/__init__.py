"""What keeps `docs/` true: pages made from the program, outputs that were printed, pictures that were drawn."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PICTURES = DOCS / "pictures"


def pages() -> list[Path]:
    """Return the README and every page of the documentation."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
