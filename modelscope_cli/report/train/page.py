"""The page of `train`: one training, or the variants of a study."""

from modelscope_cli.records.train import Training, TrainRecord
from modelscope_cli.report.page.common import images_section
from modelscope_cli.report.page.html import Html, Section, element, facts, joined
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.page.tables import sheet_section
from modelscope_cli.report.page.training import Anchors, training_sections, verdict
from modelscope_cli.report.train.figures import draw
from modelscope_cli.report.train.table import course_facts, study_facts, train_sheet


def sections(record: TrainRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the findings first, then their evidence; of a study the variants compared, then each."""
    images = images_section(record, embedded, {"training": draw})
    if record.is_study:
        evidence = [*images, *_of_study(record)]
    else:
        (training,) = record.trainings
        evidence = training_sections(training, train_sheet(record), course_facts(training), images)
    return [section for section in evidence if section.body]


def _of_study(record: TrainRecord) -> list[Section]:
    sheet = train_sheet(record)
    place = {id(row): n for n, row in enumerate(record.trainings)}
    variants = joined(_variant(training, n) for n, training in enumerate(record.trainings))
    table = sheet_section(sheet, "rows", "", anchor=lambda row: f"variant-{place[id(row)]}")
    return [
        Section("table", "Variants", joined([table, facts(study_facts(record.trainings[0]))])),
        Section("verdict", "Verdicts", variants),
    ]


def _variant(training: Training, n: int) -> Html:
    heading = element("h3", element("a", training.name, href=f"#variant-{n}"))
    return joined([heading, verdict(training, Anchors(training, f"{n}-"), course_facts(training))])
