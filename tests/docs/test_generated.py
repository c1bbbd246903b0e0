"""The pages know all that the program has, and say of it what the program says."""

import json
import re
import tomllib

import pytest

import modelscope_cli as ms
from modelscope_cli.hooks.spec import ACTIONS, KINDS
from tools.docs import DOCS, ROOT
from tools.docs.commands import documented
from tools.docs.generated import generated
from tools.docs.regions import fill


@pytest.fixture(scope="module")
def made():
    return generated()


def test_pages_made_from_the_program_are_up_to_date(made):
    stale = [path.name for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
    assert stale == [], "run: python -m tools.docs"


def test_no_page_is_left_of_a_rule_or_command_that_went_away(made):
    there = {*(DOCS / "rules").glob("*.md"), *(DOCS / "commands").glob("*.md")}
    assert there == {path for path in made if path.parent.name in ("rules", "commands")}


@pytest.mark.parametrize("name", documented())
def test_every_option_of_a_command_stands_on_its_page_or_on_that_of_shared_options(name):
    page = (DOCS / "commands" / f"{name}.md").read_text("utf-8")
    shared = (DOCS / "shared.md").read_text("utf-8")
    shown = [param for param in documented()[name].params if not getattr(param, "hidden", False)]
    options = [option for param in shown for option in param.opts if option.startswith("-")]
    known = page + "".join(re.findall(r"\n\| `-.*", shared))
    assert [option for option in options if f"`{option}`" not in known and "--help" not in option] == []
    assert re.search(rf"(?m)^modelscope {name}\b", page.partition("## Examples")[2])


def test_every_action_and_kind_of_a_hook_is_described():
    page = (DOCS / "hooks.md").read_text("utf-8")
    assert [kind for kind in KINDS if f"\n| `{kind}`" not in page] == []
    assert [action.example for action in ACTIONS.values() if f"`{action.example}`" not in page] == []


def test_every_page_is_in_the_navigation_but_for_single_rules():
    settings = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))
    listed = set(re.findall(r'"([\w/.-]+\.md)"', json.dumps(settings["project"]["nav"])))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert {page for page in pages if not page.startswith("rules/MS")} == listed


def test_a_region_is_filled_again_and_again_alike():
    page = "a\n<!-- made: x -->\nold\n<!-- end: x -->\nb\n"
    once = fill(page, "x", "new")
    assert once == fill(once, "x", "new")
    assert once.startswith("a\n")
    with pytest.raises(ValueError, match="0 regions"):
        fill(page, "y", "new")


def test_every_rule_of_training_has_a_row_in_the_guide():
    guide = (DOCS / "training.md").read_text("utf-8")
    codes = [rule.code for rule in ms.list_rules().rules if rule.code.startswith("MS7")]
    assert [code for code in codes if f"[{code}](rules/{code}.md)" not in guide] == []
