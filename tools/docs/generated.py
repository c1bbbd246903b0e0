"""Every page, or part of a page, that is made from the program."""

import re
from pathlib import Path

import modelscope_cli as ms
from tools.docs import DOCS, ROOT, commands, documents, functions, manual, rules
from tools.docs.regions import fill

# The page of a command that nobody has written about yet.
_NEW = "# modelscope {name}\n\n<!-- made: options -->\n<!-- end: options -->\n"


def generated() -> dict[Path, str]:
    """Return the pages, by path, as they should be.

    Raises:
        ValueError: a page has no place for what is made.
    """
    made = {DOCS / "rules" / f"{rule.code}.md": rules.page(rule) for rule in ms.list_rules().rules}
    for name, command in commands.documented().items():
        page = DOCS / "commands" / f"{name}.md"
        if not page.exists():
            made[page] = fill(_NEW.format(name=name), "options", commands.reference(name, command))
            continue
        made[page] = _filled(page, "options", commands.reference(name, command))
    overviews = {
        DOCS / "commands" / "index.md": ("commands", commands.overview()),
        DOCS / "shared.md": ("options", commands.shared()),
        DOCS / "rules" / "index.md": ("rules", rules.overview()),
        DOCS / "functions.md": ("functions", functions.reference()),
        DOCS / "schemas.md": ("documents", documents.overview()),
    }
    made |= {page: _filled(page, name, text) for page, (name, text) in overviews.items()}
    made = {page: _with_links(page, text) for page, text in made.items()}
    site = ROOT / "zensical.toml"
    made |= {DOCS / "ci.md": _with_recipes(DOCS / "ci.md"), site: _with_commands(site)}
    return made | {DOCS / "modelscope.1": manual.manual()}


# Code, links and headings, which stay, or the code of a rule.
_CODE = re.compile(
    r"```.*?```|`[^`]*`|\[[^\]]*\]\([^)]*\)|^#.*?$|\\?\[[^\]]*\]|\b(MS\d{3})\b", re.DOTALL | re.MULTILINE
)


def _with_links(page: Path, text: str) -> str:
    """Link the codes of rules to their pages, except on their own."""
    folder = (
        "" if page.parent.name == "rules" else "../rules/" if page.parent.name == "commands" else "rules/"
    )

    def link(code: re.Match[str]) -> str:
        return f"[{code[1]}]({folder}{code[1]}.md)" if code[1] and code[1] != page.stem else code[0]

    return _CODE.sub(link, text)


def _with_commands(site: Path) -> str:
    """List the pages of the commands in the navigation."""
    rows = "".join(f'    {{ "{name}" = "commands/{name}.md" }},\n' for name in commands.documented())
    listed = r'(?<="commands/index.md" },\n)(    { "\w+" = "commands/\w+.md" },\n)+'
    return re.sub(listed, rows, site.read_text(encoding="utf-8"))


_RECIPES = (
    ("actions", "github-actions.yml"),
    ("gitlab", "gitlab-ci.yml"),
    ("pre-commit", "pre-commit-config.yaml"),
)


def _with_recipes(page: Path) -> str:
    """Show the files of `samples/ci`, which are tried by a test of their own."""
    text = page.read_text(encoding="utf-8")
    for name, file in _RECIPES:
        recipe = (ROOT / "samples" / "ci" / file).read_text(encoding="utf-8").strip()
        text = fill(text, name, f"```yaml\n{recipe}\n```")
    return text


def _filled(page: Path, name: str, text: str) -> str:
    return fill(page.read_text(encoding="utf-8"), name, text)
