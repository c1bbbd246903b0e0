"""The page of `predict`."""

from dataclasses import replace

from modelscope_cli.records.predict import DoctorRecord, PredictRecord, TruthReport
from modelscope_cli.report import numbers
from modelscope_cli.report.page.common import anchors, images_section, table_section
from modelscope_cli.report.page.html import Html, Section, element, joined
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.predict.figures import draw_reliability
from modelscope_cli.report.predict.table import predict_sheet, tables_of

_MOST_CLASSES = 24  # of a confusion matrix; of more classes, those with the most mistakes
_NO_IMAGES = (
    "The misclassified images are not shown, since this page was made without the image files; use modelscope "
    "predict --out to see them."
)
_TITLES = {
    "measures": "Metrics",
    "worst": "Misclassified images with the highest scores",
    "classes": "Classes, lowest recall first",
    "confusions": "Confusions",
    "calibration": "Calibration",
}


def sections(record: PredictRecord | DoctorRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the table; with ground truth the confusion matrix, the figures and every table."""
    if isinstance(record, DoctorRecord) or record.truth is None:
        sheet = predict_sheet(record)
        return [table_section(sheet, anchors(sheet))]
    truth = record.truth
    sheets = {name: predict_sheet(record, name) for name in _TITLES if name in tables_of(truth)}
    if truth.classes:
        by_recall = sorted(truth.classes, key=lambda one: 2.0 if one.recall is None else one.recall)
        sheets["classes"] = replace(sheets["classes"], rows=tuple(by_recall))
    for name in [*sheets][1:]:  # the first has the facts of all
        facts = tuple(pair for pair in sheets[name].facts if pair[0] == name)
        sheets[name] = replace(sheets[name], facts=facts)
    tables = [
        table_section(sheet, anchors(sheet, name), name, _TITLES[name])
        for name, sheet in sheets.items()
        if sheet.rows
    ]
    matrix = _matrix(truth) if truth.kind == "classes" else None
    first = [Section("matrix", "Confusion matrix", matrix)] if matrix else []
    if truth.worst and record.out_dir is None and "worst.png" not in record.files:
        tables.insert(0, Section("images", "Images", element("p", _NO_IMAGES, class_="quiet")))
    return [*first, *images_section(record, embedded, {"reliability": draw_reliability}), *tables]


def _matrix(truth: TruthReport) -> Html | None:
    """Return how many images of each class got which prediction; None if the report lacks some of these pairs."""
    counts = {(one.truth, one.predicted): one.count for one in truth.confusions}
    counts |= {(one.index, one.index): one.correct for one in truth.classes}
    occurring = [one for one in truth.classes if one.n or one.predicted]
    if sum(counts.values()) != truth.images or not occurring:
        return None
    wrong = {one.index: one.n + one.predicted - 2 * one.correct for one in occurring}
    chosen = {one.index for one in sorted(occurring, key=lambda one: -wrong[one.index])[:_MOST_CLASSES]}
    classes = [one for one in occurring if one.index in chosen]
    head = [element("th", one.label or str(one.index), scope="col") for one in classes]
    most = max(counts.values())
    rows = []
    for one in classes:
        cells = []
        for other in classes:
            n = counts.get((one.index, other.index), 0)
            level = f"h{max(1, round(8 * n / most))}" if n else None
            kind = f"{level} hit" if n and other is one else level
            cells.append(element("td", str(n) if n else "·", class_=kind))
        share = numbers.percent(one.recall)
        last = element("td", f"{one.correct} of {one.n}" + (f", {share}" if share else ""), class_="quiet")
        rows.append(element("tr", element("th", one.label or str(one.index), scope="row"), *cells, last))
    left_out = len(occurring) - len(classes)
    caption = "Rows are the truth, columns the predictions; correct predictions are on the diagonal."
    caption += f" The {left_out} classes with the fewest mistakes are left out." if left_out else ""
    corner, end = element("th", "truth", scope="col"), element("th", "right", scope="col")
    table = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", corner, *head, end)),
        element("tbody", *rows),
        class_="matrix",
    )
    return joined(
        [element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Confusion matrix")]
    )
