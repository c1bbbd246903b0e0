"""A randomised head and the verdict."""

from dataclasses import replace

import pytest
import torch
from tolerance import close
from torch import nn

from modelscope_cli.analysis.explaining.receipt.randomisation import find_head, head_randomisation
from modelscope_cli.analysis.explaining.receipt.verdict import judged, together, winner_first
from modelscope_cli.analysis.explaining.request import check_requirement
from modelscope_cli.errors import UsageError
from modelscope_cli.records.explain import FAILED, NONE, NOT_MADE, NOT_TESTED, PASSED, QUICK, WEAK, Receipt


@pytest.fixture
def net():
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1))
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5)).eval()


def input_x_gradient(net, image):
    image = image.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(net(image)[0, 0], image)
    return (gradient * image).detach().sum(1)[0]


def with_random_head(net, explain):
    head = find_head(net, lambda: net(torch.zeros(1, 3, 24, 24)))
    return head_randomisation(head, lambda: {"it": explain()}, {"it": explain()})["it"]


def test_a_map_of_the_model_falls_with_its_head_and_that_of_the_image_does_not(net, unchanged):
    image = torch.randn(1, 3, 24, 24)
    check = unchanged(net)
    found = with_random_head(net, lambda: input_x_gradient(net, image))
    blind = with_random_head(net, lambda: image[0].sum(0))
    check()
    assert (found, blind) == (close(0.0, scale=1.0), close(1.0))  # the first is linear in the head
    words = "the map does not change with a random head"
    assert words in judged(Receipt(head_randomisation=blind)).failed
    assert words not in judged(Receipt(head_randomisation=found)).failed


def test_the_head_alone_is_shuffled(net):
    originals = {name: parameter.clone() for name, parameter in net.named_parameters()}
    changed = []

    def look():
        new = dict(net.named_parameters())
        changed.append({name.split(".")[0] for name in new if not torch.equal(new[name], originals[name])})
        sizes = [
            (value.flatten().abs().sort().values, originals[name].flatten().abs().sort().values)
            for name, value in new.items()
        ]
        assert all(torch.equal(*pair) for pair in sizes)
        return torch.rand(4, 4)

    with_random_head(net, look)
    assert changed == [set(), {"7"}, {"7"}]  # after the reference: the head, and its negative


def test_the_head_is_what_changes_the_score_last_and_not_what_was_made_last():
    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.unused, self.box = (nn.Linear(8, n) for n in (2, 2, 4))
            self.body = nn.Conv2d(3, 8, 3)

        def forward(self, x):
            features = self.body(x).mean((2, 3))
            scores = self.head(features)
            self.boxes = self.box(features)  # called last, and no part of the scores
            return scores

    net = Crossed()
    assert find_head(net, lambda: net(torch.zeros(1, 3, 9, 9))) is net.head
    assert find_head(nn.ReLU(), lambda: None) is None


def test_a_changed_model_without_a_map_is_not_a_map_that_changed(net):
    for nothing in ({}, {"it": torch.full((4, 4), torch.nan)}):
        found = head_randomisation(net[7], lambda maps=nothing: maps, {"it": torch.rand(4, 4)})
        assert found == {"it": None}


def test_a_model_is_left_as_found_when_explaining_fails(net, unchanged):
    reference = {"it": torch.rand(4, 4)}
    check = unchanged(net)

    def fail():
        raise RuntimeError

    with pytest.raises(RuntimeError):
        head_randomisation(net[7], fail, reference)
    check()


GOOD = Receipt(repeatability=1.0, other_image=0.5, covering=0.6, covering_chance=0.3, head_randomisation=0.0)


def changed(completeness=None, **fields):
    return judged(replace(GOOD, **fields), {"covering": "a reason"}, completeness)


def test_each_test_can_fail_and_what_was_not_made_is_neither():
    assert changed().failed == ()
    assert changed().verdict.answer == PASSED
    worse = {"repeatability": 0.6, "other_image": 1.0, "covering": 0.0, "head_randomisation": 0.9}
    said = {changed(**{name: value}).failed for name, value in worse.items()}
    assert len(said) == len(worse)
    assert all(len(failed) == 1 for failed in said)
    assert changed(completeness=0.11).failed == ("the sum of the map is more than 10 % off",)
    assert [one.test for one in changed(completeness=0.1).tests] == [
        "repeat", "image", "covering", "head", "completeness",
    ]  # fmt: skip


@pytest.mark.parametrize(("fields", "answer", "reason"), [
    ({"covering": None}, NOT_TESTED, "a reason"),
    ({"covering": float("nan")}, NOT_TESTED, "a reason"),
    ({"head_randomisation": None}, NOT_TESTED, "could not be measured"),
    ({"repeatability": None}, NOT_TESTED, "could not be measured"),
    ({"covering": None, "head_randomisation": 1.0}, FAILED, "the map does not change with a random head"),
])  # fmt: skip
def test_a_map_that_was_not_tested_is_not_passed(fields, answer, reason):
    receipt = changed(**fields)
    assert (receipt.verdict.answer, receipt.verdict.reason) == (answer, reason)
    assert {one.test: one.answer for one in receipt.tests}["covering"] == (
        NOT_MADE if "covering" in fields else PASSED
    )
    assert judged(Receipt()).verdict.answer == NOT_TESTED


@pytest.mark.parametrize(("covering", "answer"), [
    (0.31, PASSED), (0.3, WEAK), (0.01, WEAK), (0.0, FAILED), (-0.2, FAILED),
])  # fmt: skip
def test_a_map_no_better_than_its_shifted_copies_is_weak(covering, answer):
    receipt = changed(covering=covering)
    assert receipt.verdict.answer == answer
    assert {one.test: one.answer for one in receipt.tests}["covering"] == answer
    assert (
        receipt.verdict.reason
        == {
            PASSED: "",
            WEAK: "the score falls about as much for shifted copies of the map",
            FAILED: "the score does not fall when what the map marks is covered",
        }[answer]
    )
    verdict = receipt.verdict
    assert (verdict.passed, verdict.weak, verdict.failed) == (
        answer == PASSED,
        answer == WEAK,
        answer == FAILED,
    )
    assert changed(covering=covering, head_randomisation=1.0).verdict.answer == FAILED
    assert changed(covering=0.2, covering_chance=-0.1).verdict.answer == PASSED


@pytest.mark.parametrize(("covering", "answer"), [(0.35, WEAK), (0.36, PASSED)])
def test_a_map_a_hair_better_than_its_shifted_copies_is_weak(covering, answer):
    assert changed(covering=covering, covering_margin=0.055).verdict.answer == answer


def test_weak_maps_are_counted_and_come_after_those_that_pass():
    weak = changed(covering=0.2)
    found = together(GOOD, [weak, weak, changed()])
    assert (found.verdict.answer, found.verdict.weak, found.verdict.passed) == (WEAK, 2, 1)
    strong = changed(covering=0.9, covering_chance=0.95)
    assert winner_first({"weak": strong, "passed": changed()}) == ["passed", "weak"]


def test_the_answer_for_several_images_is_that_of_most_and_all_are_counted():
    each = [changed(), changed(covering=-0.1), changed(covering=None), changed(covering=-0.2)]
    found = together(GOOD, each)
    covering = found.tests[2]
    assert (covering.answer, covering.passed, covering.failed, covering.not_made) == (FAILED, 1, 2, 1)
    assert (found.verdict.answer, found.verdict.passed, found.verdict.not_made) == (FAILED, 1, 1)
    assert found.failed == ("the score does not fall when what the map marks is covered",)
    tied = together(GOOD, [changed(), changed(covering=None)])
    assert (tied.tests[2].answer, tied.verdict.answer) == (NOT_MADE, NOT_TESTED)


def test_each_reason_is_counted_where_images_have_several():
    each = [judged(Receipt(), {"covering": reason}) for reason in ("flat", "improbable", "improbable")]
    assert together(Receipt(), each).tests[2].reason == "improbable in 2; flat in 1"
    assert together(Receipt(), each[1:]).tests[2].reason == "improbable"


def test_the_winner_failed_least_and_then_covers_best():
    receipts = {
        "outlives": changed(covering=0.9, head_randomisation=1.0),
        "second": changed(covering=0.5),
        "first": changed(),
        "unmeasured": judged(Receipt()),
    }
    assert winner_first(receipts) == ["first", "second", "unmeasured", "outlives"]
    assert winner_first(dict(reversed(receipts.items()))) == ["first", "second", "unmeasured", "outlives"]
    assert winner_first(receipts, {"first"}) == [
        "second",
        "first",
        "unmeasured",
        "outlives",
    ]  # it is scattered


def test_only_passed_can_be_required_and_not_without_a_receipt():
    check_requirement("passed", QUICK)
    with pytest.raises(UsageError):
        check_requirement("covering>0", QUICK)
    with pytest.raises(UsageError) as raised:
        check_requirement("passed", NONE)
    assert raised.value.hint == "leave out --receipt none"
