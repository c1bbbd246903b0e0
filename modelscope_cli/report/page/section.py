"""What a page is made of."""

from dataclasses import dataclass

from modelscope_cli.report.page.html import Html, element


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a page. `name`: where links jump to; `title`: its heading, and its entry in the contents."""

    name: str
    title: str
    body: Html

    def render(self) -> Html:
        heading = element("h2", self.title, id=f"{self.name}-title")
        return element("section", heading, self.body, id=self.name, aria_labelledby=f"{self.name}-title")


def facts(pairs: list[tuple[str, str | Html]]) -> Html:
    """Return words beside what they are about."""
    lines = (element("div", element("dt", label), element("dd", words)) for label, words in pairs)
    return element("dl", *lines, class_="facts")
