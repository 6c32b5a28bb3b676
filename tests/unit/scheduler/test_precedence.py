"""Jobs that name each other, in order."""

from gpuguard.scheduler.precedence import parents_first


def test_each_comes_behind_its_parents_and_else_in_its_order() -> None:
    above = {"c": ["b", "a"], "b": ["a"]}
    assert parents_first("cdab", lambda name: above.get(name, [])) == (("a", "b", "c", "d"), {})


def test_those_that_wait_for_themselves_are_told_with_the_way_round() -> None:
    above = {"a": ["b"], "b": ["c"], "c": ["b"], "s": ["s"], "x": ["free"]}
    order, stuck = parents_first("abcsx", lambda name: above.get(name, []))
    assert order == ("free", "x")
    assert stuck == {"b": "b -> c -> b", "c": "b -> c -> b", "a": "b -> c -> b", "s": "s -> s"}


def test_two_rings_with_one_member_in_common() -> None:
    above = {"a": ["b", "c"], "b": ["a"], "c": ["a"]}
    _, stuck = parents_first("abc", lambda name: above[name])
    assert set(stuck) == {"a", "b", "c"}


def test_a_long_way_round_is_cut() -> None:
    _, stuck = parents_first(map(str, range(20)), lambda name: [str((int(name) + 1) % 20)])
    assert stuck["7"] == "0 -> 1 -> 2 -> 3 -> 4 -> 5 -> 14 more -> 0"


def test_ten_thousand_in_a_row_are_no_depth() -> None:
    order, stuck = parents_first(["9999"], lambda name: [str(int(name) - 1)] if name != "0" else [])
    assert order == tuple(map(str, range(10_000)))
    assert not stuck
