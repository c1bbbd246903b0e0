"""The page of `train`."""

from modelscope_cli.records.train import TrainRecord
from modelscope_cli.report.page.common import images_section
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.page.training import training_sections
from modelscope_cli.report.train.figures import draw_curves
from modelscope_cli.report.train.table import course_facts, train_sheet


def sections(record: TrainRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the findings first, then their evidence."""
    images = images_section(record, embedded, {"training": draw_curves})
    evidence = training_sections(record.training, train_sheet(record), course_facts(record.training), images)
    return [section for section in evidence if section.body]
