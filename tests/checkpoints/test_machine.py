"""The machine reads pickles as CPython does, and finds the entries of archives as torch does."""

import io
import pickle
import pickletools
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelscope_cli.checkpoints.opcodes import _PLAIN, _READERS
from modelscope_cli.checkpoints.pickle_machine import PickleMachine
from modelscope_cli.checkpoints.zip_directory import list_entries, torch_records

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


def nothing(name: str, args: object) -> None:
    return None


@settings(deadline=None)
@given(PLAIN, st.integers(3, 5))
def test_plain_values_are_read_as_they_are(value, protocol):
    assert PickleMachine(pickle.dumps(value, protocol), nothing).read() == value


@settings(deadline=None)
@given(st.integers() | st.text() | st.floats(allow_nan=False) | st.lists(st.integers()), st.integers(0, 2))
def test_old_protocols(value, protocol):
    assert PickleMachine(pickle.dumps(value, protocol), nothing).read() == value


def test_every_operation_is_known():
    assert set(_READERS) | {code[0] for code in _PLAIN} == {ord(code.code) for code in pickletools.opcodes}


@pytest.mark.parametrize(
    "text", [b"I0x10\n.", b"I010\n.", b"L0x10L\n.", b"I01\n.", b"F1e3\n.", b"S'a\\x41\\n'\n.", b"V\\u20ac\n."]
)
def test_texts_are_read_as_c_reads_them(text):
    assert PickleMachine(text, nothing).read() == pickle.loads(text)


@pytest.mark.parametrize("value", ["a" * (2 << 20), b"a" * (2 << 20)])
def test_long_arguments_are_stepped_over(value):
    blob, after = PickleMachine(pickle.dumps((value, 1), 4), nothing).read()
    assert (blob.nbytes, blob.is_text, after) == (2 << 20, isinstance(value, str), 1)


def test_work_is_bounded_by_the_length():
    with pytest.raises(ValueError, match="operations in few bytes"):
        PickleMachine(b"\x80\x02" + b"N0" * 2_000_000 + b"N.", nothing).read()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["a/data.pkl", "a/DATA.pkl"])
def test_two_entries_of_one_name_are_refused(name):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for entry in ("a/data.pkl", name, "b/data.pkl"):
            archive.writestr(zipfile.ZipInfo(entry), "1")
    with pytest.raises(ValueError, match="twice"):
        torch_records(list_entries(packed))
