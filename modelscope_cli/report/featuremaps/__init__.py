"""How the result of `featuremaps` is shown."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from modelscope_cli.records.featuremaps import FeatureMapsRecord, KeptMaps
from modelscope_cli.report.featuremaps.page import sections
from modelscope_cli.report.featuremaps.table import answer, featuremaps_columns, featuremaps_sheet
from modelscope_cli.report.view import View


class FeatureMapsView(View[FeatureMapsRecord]):
    """The table, images and page of `featuremaps`."""

    sheet = staticmethod(featuremaps_sheet)
    columns = featuremaps_columns(True)
    answer = staticmethod(answer)
    sections = staticmethod(sections)

    def save_files(self, record: FeatureMapsRecord, folder: Path) -> FeatureMapsRecord:
        kept: KeptMaps | None = self.kept(record)
        if isinstance(kept, KeptMaps):
            from modelscope_cli.report.gallery import save_gallery

            return save_gallery(record, kept, folder)
        maps = tuple(replace(row, file=None) for row in record.maps)
        return record.with_changes(maps=maps, contact_sheet=None)

    shown_below = "contact_sheet.png"

    def preview(self, record: FeatureMapsRecord) -> bytes | None:
        from modelscope_cli.report.gallery import contact_sheet_of
        from modelscope_cli.report.image_tiles import to_png

        kept = self.kept(record)
        return to_png(contact_sheet_of(record, kept)) if isinstance(kept, KeptMaps) else None

    def tensors(self, record: FeatureMapsRecord) -> Mapping[str, Any] | None:
        from modelscope_cli.report.gallery import tensors_of

        kept = self.kept(record)
        return tensors_of(record, kept) if isinstance(kept, KeptMaps) else None
