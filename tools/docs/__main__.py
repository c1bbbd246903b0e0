"""Bring the documentation up to date.

    python -m tools.docs              # what is made from the program: options, rules, functions; seconds
    python -m tools.docs --outputs    # also run every command that is shown with its output; minutes
    python -m tools.docs --pictures   # also draw every picture; minutes

Pages may be named: `python -m tools.docs --outputs docs/commands/stats.md`.
"""

import argparse
from pathlib import Path

from tools.docs import ROOT, pages, pictures
from tools.docs.generated import generated
from tools.docs.printed import renew_outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--outputs", action="store_true")
    parser.add_argument("--pictures", action="store_true")
    parser.add_argument("pages", nargs="*", type=Path, help="of these alone the outputs are renewed")
    options = parser.parse_args()
    for path, text in generated().items():
        _write(path, text)
    for page in [path.resolve() for path in options.pages] or pages():
        if options.outputs:
            _write(page, renew_outputs(page.read_text(encoding="utf-8")))
    if options.pictures:
        pictures.draw()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
