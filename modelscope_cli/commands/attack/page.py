"""The page of `attack`, and the names of the files in its folder."""

from modelscope_cli.commands.attack.table import attack_sheet, loss_words, name
from modelscope_cli.records.attack import Answer, AttackRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.page.charts import Line, line_chart
from modelscope_cli.report.page.common import anchors, table_section
from modelscope_cli.report.page.html import NOTHING, Html, Section, joined
from modelscope_cli.report.page.images import EmbeddedImages, slider
from modelscope_cli.report.reading import RESULT_FILES

_LEAST_SIDE = 448  # pixels; a smaller image is enlarged by an integer factor


def sections(record: AttackRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the outcome, the image before and after, the perturbation, the loss, and the table."""
    sheet = attack_sheet(record)
    lines = (
        f"{_words(record.before)} plus the change, magnified {record.magnification} times, is "
        f"{_words(record.after_saved)}"
    )
    items = [
        Section("images", "Before and after", _before_and_after(record, embedded)),
        Section("change", "The change", joined([embedded.figure(COMPARISON, lines)])),
        Section("loss", "Loss over steps", _losses(record)),
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


def _losses(record: AttackRecord) -> Html:
    """Return the loss of the best run, and those of all others as one broken line."""
    runs = [(range(len(losses)), losses) for losses in record.losses]
    step, loss = runs.pop(record.restart)
    lines = [Line(f"run {record.restart + 1}" if runs else "loss", step, loss)]
    if runs:
        steps = [n for step, _ in runs for n in (*step, 0)]
        values = [value for _, losses in runs for value in (*losses, None)]
        lines.insert(0, Line("the other runs", steps, values, 1))
    towards = "fall" if record.targeted else "rise"
    title = f"{loss_words(record)} (has to {towards}); {numbers.number(record.loss_before)} for the original image"
    return line_chart(title, lines)


BEFORE, ADVERSARIAL, PERTURBATION = "before.png", "adversarial.png", "perturbation.png"
COMPARISON, LOSS = "comparison.png", "loss.png"
FILES = (BEFORE, ADVERSARIAL, PERTURBATION, COMPARISON, LOSS, *RESULT_FILES)
