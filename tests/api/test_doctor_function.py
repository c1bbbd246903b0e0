"""`ms.doctor` and `predict --doctor` are one thing."""

from function_and_command import HEALTHY, SAMPLES, STAR, TINY, plain, without

import modelscope_cli as ms


def test_function_and_command_give_the_same_document(both):
    found = ms.doctor(TINY, [STAR, f"{SAMPLES}/harbour.jpg"], checkpoint=HEALTHY, size=64, mean=0.5)
    assert both.said() == ""
    typed = both.typed(
        f"predict --doctor {STAR} {SAMPLES}/harbour.jpg -m {TINY} -c {HEALTHY} --size 64 --mean 0.5"
    )
    assert without(plain(found.to_dict())) == without(typed)
    assert typed["schema"] == "modelscope/predict-doctor/1"


def test_it_shows_itself_as_the_command_does(both):
    found = ms.doctor(TINY, STAR, checkpoint=HEALTHY, size=64)
    assert found["BGR"] in list(found)
    assert [row["variation"] for row in found.to_rows()] == [row.name for row in found.variations]
    assert "a guess, as the weights do not specify it" in str(found)
    assert both.said() == ""
