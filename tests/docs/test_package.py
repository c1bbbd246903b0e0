"""What the pages of package indexes, conda and man get."""

import importlib.util
import re
import shutil
import subprocess
import tomllib
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

import modelscope_cli as ms
from tools.docs import DOCS, ROOT

ADDRESS = "https://code.example/team/modelscope"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


class Links(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.found += [value for name, value in attributes if name in ("href", "src")]


@pytest.fixture
def page():
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PackagePage(str(ROOT), {})


def metadata_of(page):
    metadata = {}
    page.update(metadata)
    return metadata


def links_of(metadata):
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(metadata["readme"]["text"])
    return [link for link in Links(html).found if not link.startswith("#")]


def test_every_link_of_the_long_description_is_absolute_and_leads_somewhere(page, monkeypatch):
    monkeypatch.setenv("PROJECT_URL", f"{ADDRESS}/")
    metadata = metadata_of(page)
    links = links_of(metadata)
    assert len(links) > 30
    assert not [link for link in links if not link.startswith("https://")]
    ours = [link.removeprefix(ADDRESS) for link in links if link.startswith(ADDRESS)]
    assert len(ours) > 30
    for link in ours:
        kind, path = re.fullmatch(r"/(raw|blob)/HEAD/([^#]+)(?:#.*)?", link).groups()
        assert (ROOT / path).exists(), link
        assert (kind == "raw") == path.endswith(".png")
    assert metadata["urls"]["Repository"] == ADDRESS


def test_without_an_address_no_link_leads_nowhere(page, monkeypatch):
    monkeypatch.delenv("PROJECT_URL", raising=False)
    metadata = metadata_of(page)
    assert metadata["urls"] == {}
    text = metadata["readme"]["text"]
    assert [link for link in links_of(metadata) if not link.startswith("https://")] == []
    assert "| What is in this model, and what does each layer cost? | `modelscope summary` |" in text
    assert "docs/pictures" not in text


def test_the_recipe_of_conda_has_the_requirements_of_the_package():
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / ".ci" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    theirs = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    wanted = {
        f"{theirs.get(name, name)} >={low}"
        for name, low in (one.split(">=") for one in PROJECT["dependencies"])
    }
    assert set(recipe["requirements"]["run"]) - {"python >=${{ python_min }}"} == wanted
    assert recipe["context"] == {
        "version": ms.__version__,
        "python_min": PROJECT["requires-python"].lstrip(">="),
    }
    scripts = {f"{name} = {target}" for name, target in PROJECT["scripts"].items()}
    assert set(recipe["build"]["python"]["entry_points"]) == scripts


def test_the_manual_page_is_without_fault():
    if shutil.which("groff") is None:
        pytest.skip("there is no groff")
    line = ["groff", "-man", "-Tutf8", "-ww", DOCS / "modelscope.1"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert not done.stderr
    assert "modelscope watch" in done.stdout
