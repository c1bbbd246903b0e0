"""The page of `train`: one training, or the variants of a study."""

from modelscope_cli.commands.train.table import settings_of, study_facts, train_sheet
from modelscope_cli.records.train import Training, TrainRecord
from modelscope_cli.report.page.common import images_section, rules_section
from modelscope_cli.report.page.html import Html, Section, element, facts, joined
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.page.tables import sheet_section
from modelscope_cli.report.page.training import (
    Anchors,
    curves,
    layer_rows,
    layer_tree,
    parameter_rows,
    verdict,
)
from modelscope_cli.rules.registry import rules_of


def sections(record: TrainRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the findings first, then their evidence; of a study the variants compared, then each."""
    images = images_section(record, embedded)
    evidence = [*images, *_of_study(record)] if record.is_study else [*_of_training(record), *images]
    return [section for section in (*evidence, *rules_section(rules_of(record.findings))) if section.body]


def _of_training(record: TrainRecord) -> list[Section]:
    (training,) = record.trainings
    sheet = train_sheet(record)
    anchors = Anchors(training)
    return [
        Section("verdict", "Verdict", verdict(training, anchors, settings_of(training))),
        Section("steps", "Loss over steps", curves(training, anchors)),
        Section("layers", "Layers", layer_rows(training, sheet)),
        Section("tree", "Tree", layer_tree(training, sheet)),
        Section("parameters", "Parameters", parameter_rows(training)),
    ]


def _of_study(record: TrainRecord) -> list[Section]:
    sheet = train_sheet(record)
    place = {id(row): n for n, row in enumerate(record.trainings)}
    variants = joined(_variant(training, n) for n, training in enumerate(record.trainings))
    table = sheet_section(sheet, "rows", "", anchor=lambda row: f"variant-{place[id(row)]}")
    explained = facts([*study_facts(record.trainings[0])])
    return [
        Section("table", "Variants", joined([table, explained])),
        Section("verdict", "Verdicts", variants),
    ]


def _variant(training: Training, n: int) -> Html:
    heading = element("h3", element("a", training.name, href=f"#variant-{n}"))
    return joined([heading, verdict(training, Anchors(training, f"{n}-"), settings_of(training))])
