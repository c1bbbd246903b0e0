"""How the result of `featuremaps` is shown."""

from collections.abc import Sequence

from modelscope_cli.records.featuremaps import FeatureMapsRecord
from modelscope_cli.report.featuremaps.table import answer, every_column, featuremaps_sheet
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.view import View


class FeatureMapsView(View[FeatureMapsRecord]):
    """The table and page of `featuremaps`."""

    def sheet(self, record: FeatureMapsRecord) -> Sheet:
        return featuremaps_sheet(record)

    def columns(self) -> Sequence[Column]:
        return every_column()

    def answer(self, record: FeatureMapsRecord) -> str:
        return answer(record)

    def sections(self, record: FeatureMapsRecord, embedded: EmbeddedImages) -> list[Section]:
        from modelscope_cli.report.featuremaps.page import sections

        return sections(record, embedded)
