"""`ms.check`: what the command gives, from Python, and a verdict that a test can end with."""

import pytest
from function_and_command import HEALTHY, SICK, STAR, TINY, tiny_resnet

import modelscope_cli as ms


def test_the_verdict_reads_like_the_terminals(both):
    ms.check(tiny_resnet(), STAR, fail_on="warning").assert_passed()
    record = ms.check(tiny_resnet(SICK), STAR, select="MS202", fail_on="warning")
    with pytest.raises(AssertionError) as caught:
        record.assert_passed()
    (finding,) = record.findings
    first, line, hint = str(caught.value).splitlines()
    assert first == "TinyResNet on 1 image, eval mode: failed with 1 warning"
    assert line == f"MS202 warning: relu: {finding.message}"
    assert hint.strip() == f"hint: {finding.hint}"
    assert both.said() == ""


def test_the_project_file_is_for_the_command_alone(both, cwd):
    (cwd / "pyproject.toml").write_text('[tool.modelscope]\nselect = "MS501"\nmax-params = "1k"\n')
    typed = both.typed(f"check {TINY} {STAR} -c {HEALTHY}", 1)
    assert [finding["code"] for finding in typed["findings"]] == ["MS501"]
    assert ms.check(TINY, STAR, checkpoint=HEALTHY, select="MS1").passed
