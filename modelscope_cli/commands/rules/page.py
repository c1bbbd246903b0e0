"""The page of `rules`."""

from modelscope_cli.commands.rules.command import rules_sheet
from modelscope_cli.records.check import RuleList
from modelscope_cli.report.page.common import rules_section
from modelscope_cli.report.page.html import Section, facts, joined
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.page.tables import sheet_section


def sections(listed: RuleList, embedded: EmbeddedImages) -> list[Section]:
    """Return the table of the rules, and the text of each."""
    sheet = rules_sheet(listed)
    body = joined([facts([*sheet.facts]), sheet_section(sheet, "rows", "")])
    return [Section("table", "Table", body), *rules_section(listed.rules)]
