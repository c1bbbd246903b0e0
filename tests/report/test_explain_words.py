"""What `explain` says of how the maps of several images did in their tests."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest

import modelscope_cli as ms
from modelscope_cli.records.explain import EvidenceBox, Receipt
from modelscope_cli.records.explain import TestJudgement as Judgement
from modelscope_cli.report.explain.table import explain_sheet, graded
from modelscope_cli.report.registry import view_of

SAMPLES = Path(__file__).parents[2] / "samples"


def judgement(passed=0, weak=0, failed=0, not_made=0, test="verdict"):
    return Judgement(test, "passed", "", passed, failed, not_made, weak)


@pytest.mark.parametrize(
    "counts", [one for one in itertools.product(range(3), repeat=4) if 0 < sum(one) <= 4]
)
def test_the_grades_of_a_map_add_up_to_the_images(counts):
    words = graded(judgement(*counts))
    names = ("passed", "weak", "failed", "not fully tested")
    said = {name: int(n) for name, n in re.findall(r"(\D+?) on (\d+)(?: images?)?(?:, )?", words)}
    assert said == {name: n for name, n in zip(names, counts, strict=True) if n} or (
        words in names and sum(counts) == 1
    )
    assert graded(None) == ""


@pytest.fixture(scope="module")
def explained():
    model = f"{SAMPLES}/tiny_resnet.py:TinyResNet"
    one = ms.explain(model, f"{SAMPLES}/star.png", weights="none", method="hirescam", size=32, receipt=False)

    def change(verdict, tests, images):
        row = replace(one.rows[0], receipt=Receipt(tests=tests, verdict=verdict), where=None)
        return replace(one, rows=(row,), images=images, receipt_kind="quick")

    return change


def test_the_heading_and_the_footer_count_the_same(explained):
    tests = (judgement(2, test="repeat"), judgement(1, not_made=1, test="covering"))
    record = explained(judgement(1, not_made=1), tests, 2)
    method = record.rows[0].method
    assert f"{method} not fully tested on 1 image, passed on 1" in view_of(record).answer(record)
    facts = dict(explain_sheet(record).facts)
    assert facts["receipt"].startswith("3 of 4 tests passed; ")
    assert max(map(len, facts)) < 25  # a label of all methods would leave no room for what is said of them


@pytest.mark.parametrize("grade", ["passed", "weak", "not tested"])
def test_the_place_of_the_evidence_has_no_better_grade_than_its_maps(explained, grade):
    counts = {grade.replace("not tested", "not_made"): 1}
    tests = (judgement(1, test="repeat"), judgement(**counts, test="covering"))
    record = explained(replace(judgement(**counts), answer=grade), tests, 1)
    box = EvidenceBox("centre", 0.1, (0, 0, 2, 2))
    first = replace(record.rows[0], where=box)
    sure = replace(
        first, method="saliency", where=replace(box, place="left"), receipt=Receipt(verdict=judgement(1))
    )
    rows = (first, replace(first, method="gradcam"), sure)
    words = view_of(record).answer(replace(record, rows=rows))
    but = "" if grade == "passed" else ", none of which passed"
    n = 1 if grade == "not tested" else 3
    assert f": the evidence is in the centre (10.0 % of the image; 2 of 3 maps{but}); {n} of 3 maps " in words


def test_the_heading_says_what_passed_means_and_whether_maps_agree(explained):
    record = explained(judgement(1), (judgement(1, test="covering"),), 1)
    words = view_of(record).answer(record)
    assert "1 of 1 map tested: 1 passed (covering what they mark lowers the score more than covering" in words
    row = replace(record.rows[0], agreement=0.1)
    for agreement, said in (
        (0.2, "the maps agree little: mean rank correlation +0.15, below 0.3"),
        (0.5, "1 of 2 maps agrees little with the others (mean rank correlation below 0.3): hirescam +0.10"),
    ):
        both = replace(record, rows=(row, replace(row, method="gradcam", agreement=agreement)))
        assert said in dict(explain_sheet(both).facts)["agreement"]


def test_a_map_that_cannot_be_tested_says_why(explained):
    tests = (judgement(1, test="repeat"), judgement(not_made=1, test="covering"))
    why = replace(judgement(not_made=1), answer="not tested", reason="the score is higher")
    record = explained(why, tests, 1)
    assert "1 map, not fully tested: the score is higher; the weights are random" in view_of(record).answer(
        record
    )
