"""What of today's findings is known: matched by code and layer, and no worse than it was."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelscope_cli.records.findings import Finding, KnownFinding, RuleInfo
from modelscope_cli.rules.baseline import compare, known_of, read_baseline, render_baseline, updated
from modelscope_cli.rules.registry import RULES


def found(code, layer, value, threshold=0.5):
    return Finding(code, "a-rule", "warning", layer, value, threshold, "seen", "do this")


def judged(*codes):
    infos = (rule.info(rule.threshold) for rule in RULES)
    return [info for info in infos if info.code in codes]


@pytest.mark.parametrize(("before", "now", "threshold", "known"), [
    *[(0.8, 0.8, 0.5, True), (0.8, 0.805, 0.5, True), (0.8, 0.82, 0.5, False), (0.8, 0.6, 0.5, True)],
    # Below its threshold less is worse.
    *[(1e-9, 1e-10, 1e-7, False), (1e-9, 1e-8, 1e-7, True), (0.0, 0.0, 1e-7, True), (1e-9, 0.0, 1e-7, False)],
    *[(None, 0.8, 0.5, False), (0.8, None, 0.5, False), (None, None, "1,10", True)],
])  # fmt: skip
def test_a_finding_that_grew_no_worse_is_known(before, now, threshold, known):
    (finding,), gone = compare(
        [found("MS202", "relu", now, threshold)], [KnownFinding("MS202", "relu", before)], judged("MS202")
    )
    assert finding.known is known
    assert gone == ()


@pytest.mark.parametrize(("message", "was"), [
    *[("28 of 32 channels are always zero", "20 of 32"), ("87.5 % of the values are zero", "62.5 %")],
    ("its gain is 0.875", "0.625"),
])  # fmt: skip
def test_what_is_worse_is_compared_in_the_unit_of_its_message(message, was):
    finding = replace(found("MS202", "relu", 0.875), message=message)
    (worse,), _ = compare([finding], [KnownFinding("MS202", "relu", 0.625)], judged("MS202"))
    assert worse.message == f"{message}; worse than in the baseline, which has {was}"


def test_of_several_in_one_place_each_needs_its_own_entry():
    known = [KnownFinding("MS101", "head", 3.0)]
    findings, _ = compare([found("MS101", "head", 1.0, 0), found("MS101", "head", 3.0, 0)], known, ())
    assert [finding.known for finding in findings] == [False, True]


def test_more_images_of_one_class_are_no_worse():
    known = known_of([found("MS601", None, 10.0, 8)])
    (finding,), _ = compare([found("MS601", None, 20.0, 8)], known, judged("MS601"))
    assert finding.known


def test_rules_that_were_not_judged_keep_their_entries():
    known = [KnownFinding("MS202", "relu", 0.9), KnownFinding("MS302", "head", 1e-9)]
    assert compare([], known, judged("MS202"))[1] == (known[0],)
    assert updated(known, [], judged("MS202")) == (known[1],)


values = st.none() | st.floats(0, 1)
entries = st.builds(
    KnownFinding, st.sampled_from(["MS101", "MS202"]), st.none() | st.text(max_size=5), values
)


@given(st.lists(entries, max_size=6))
def test_a_baseline_that_was_written_is_read_back(tmp_path_factory, known):
    path = tmp_path_factory.mktemp("baseline") / "known.json"
    path.write_text(render_baseline(known, "Net"), encoding="utf-8")
    again, model = read_baseline(path)
    assert model == "Net"
    assert sorted(map(repr, again)) == sorted(map(repr, known))
    assert render_baseline(reversed(again), model) == path.read_text(encoding="utf-8")


def test_a_rule_that_is_not_there_any_more_is_left_alone():
    known = [KnownFinding("MS999", "head", 1.0)]
    assert updated(known, [], [RuleInfo("MS101", "", "error", "", 0, "", "", "")]) == tuple(known)
