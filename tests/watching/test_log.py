"""The log and what is read out of it."""

import math
import os

import pytest

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.watching.log import VERSION, Log, log_file, number, read_log
from modelscope_cli.watching.read_series import read_series


def test_what_was_written_comes_back_also_what_is_not_finite(tmp_path):
    log = Log(log_file(tmp_path))
    log.write("step", values=[1, 0.1, math.nan, math.inf, None], name="Schöne Grüße")
    log.close()
    ((kind, fields),) = read_log(log_file(tmp_path))
    assert kind == "step"
    assert fields["name"] == "Schöne Grüße"
    one, tenth, nan, inf, none = fields["values"]
    assert (one, tenth, none) == (1, 0.1, None)
    assert math.isnan(number(nan))
    assert number(inf) == math.inf


@pytest.mark.parametrize("rest", ['{"step": {"opt', "[1]", '{"a": 1, "b": 2}', "\x00\x00", '"end"'])
def test_a_line_that_was_cut_off_is_left_out(tmp_path, rest):
    log_file(tmp_path).write_text('{"begin":{"version":4,"script":"a.py","world":1}}\n' + rest)
    assert list(read_log(log_file(tmp_path))) == [
        ("begin", {"version": VERSION, "script": "a.py", "world": 1})
    ]
    assert read_series(tmp_path).ranks[0].n_steps == 0


def test_no_log_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"log\.jsonl"):
        read_series(tmp_path)


def test_a_log_that_is_being_written_is_not_written_twice(tmp_path):
    first = Log(log_file(tmp_path))
    first.write("begin", script="a.py")
    with pytest.raises(CannotRunError, match="another run is writing"):
        Log(log_file(tmp_path))
    assert [kind for kind, _ in read_log(log_file(tmp_path))] == ["begin"]
    in_a_fork = os.dup(first._file)  # as a worker that outlives the run has it
    first.close()
    Log(log_file(tmp_path)).close()
    os.close(in_a_fork)
    assert not list(read_log(log_file(tmp_path)))
