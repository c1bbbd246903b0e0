"""A Chromium for the tests that need one; where there is none they are skipped, and say so."""

import browser as chromium
import pytest
from samples_of_results import documents  # noqa: F401


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if chromium.find() is None:
        pytest.skip("no Chromium here: apt-get install chromium, or CHROMIUM=/path/to/it")
    with chromium.opened(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def shown(browser, tmp_path):
    """Open the page of a document."""
    from modelscope_cli.records.documents import restore
    from modelscope_cli.report.page.results import page_of

    def show(document, folder=None, **how):
        file = tmp_path / "page.html"
        file.write_text(page_of(restore(document), folder), encoding="utf-8")
        browser.open(file, **how)
        return browser

    return show
