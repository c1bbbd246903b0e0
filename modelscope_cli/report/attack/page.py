"""The page of `attack`."""

from modelscope_cli.records.attack import Answer, AttackRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.attack.figures import ADVERSARIAL, BEFORE
from modelscope_cli.report.attack.table import COMPARISON, attack_sheet, name
from modelscope_cli.report.page.common import anchors, table_section
from modelscope_cli.report.page.html import NOTHING, Html, Section, joined
from modelscope_cli.report.page.images import EmbeddedImages, slider

_LEAST_SIDE = 448  # pixels; a smaller image is enlarged by an integer factor


def sections(record: AttackRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the outcome, the image before and after, the perturbation, and the table."""
    sheet = attack_sheet(record)
    lines = (
        f"{_words(record.before)} plus the change, magnified {record.magnification} times, is "
        f"{_words(record.after_saved)}"
    )
    items = [
        Section("images", "Before and after", _before_and_after(record, embedded)),
        Section("change", "The change", joined([embedded.figure(COMPARISON, lines)])),
        table_section(sheet, anchors(sheet, "class")),
    ]
    return [section for section in items if section.body]


def _before_and_after(record: AttackRecord, embedded: EmbeddedImages) -> Html:
    images = ((BEFORE, "before", record.before), (ADVERSARIAL, "after, as saved", record.after_saved))
    figures = [
        embedded.figure(
            file,
            f"the image {when}: {_words(answer)}",
            f"{when}: {_first(answer)}",
            least=_LEAST_SIDE,
            is_exact=True,
        )
        for file, when, answer in images
    ]
    before, after = figures
    return slider(before, after) if before is not None and after is not None else NOTHING


def _words(answer: Answer) -> str:
    """Return the likeliest classes with their probabilities: `star 98.1 %, ring 1.2 %`."""
    return ", ".join(
        f"{name(guess.index, guess.label)} {numbers.percent(guess.score)}" for guess in answer.top
    )


def _first(answer: Answer) -> str:
    return _words(Answer(answer.top[:1], answer.said))
