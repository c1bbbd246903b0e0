"""Numbers that are handed out once among processes."""

from itertools import count

from modelscope_cli.analysis.blocks.rendezvous import Rendezvous


def test_every_number_is_handed_out_once_and_none_beyond_the_last(monkeypatch):
    counted = count(1)
    monkeypatch.setattr(Rendezvous, "__init__", lambda self: None)
    monkeypatch.setattr(Rendezvous, "_add", lambda self, counter, n: next(counted))
    mine, other = Rendezvous(), Rendezvous()
    first = mine.numbers("blocks", 5)
    taken = [next(first), *other.numbers("blocks", 5), *first]
    assert taken == [0, 1, 2, 3, 4]
