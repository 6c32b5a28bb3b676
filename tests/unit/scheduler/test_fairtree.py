"""The order of the tree, on cases that can be walked by hand."""

from collections.abc import Mapping

import numpy as np
import pytest

from gpuguard.errors import ConfigInvalid
from gpuguard.scheduler.fairtree import FairTree, Standing, check_shares
from gpuguard.scheduler.usage import Holder

H = Holder


def stand(used: Mapping[Holder, float], shares: Mapping[str, float] | None = None) -> Standing:
    return FairTree(tuple(used), shares or {}).standing(np.array(list(used.values()), dtype=np.float64))


def test_a_better_served_account_is_behind_as_a_whole() -> None:
    # In sum a has used 10 and b 9, though nobody has used more than the one in b.
    factors = stand({H("a", "x"): 8, H("a", "y"): 2, H("b", "z"): 9}).factors
    assert factors == {H("b", "z"): 1.0, H("a", "y"): 2 / 3, H("a", "x"): 1 / 3}


def test_shares_count_by_account_and_by_user() -> None:
    used = {H("a", "x"): 8.0, H("a", "y"): 2.0, H("b", "z"): 9.0}
    order = sorted(used, key=stand(used, {"a": 2, "a:x": 5}).factors.__getitem__, reverse=True)
    assert order == [H("a", "x"), H("a", "y"), H("b", "z")]
    assert stand(used, {":x": 5}).factors[H("a", "x")] > stand(used, {":x": 5}).factors[H("a", "y")]


def test_who_has_used_nothing_is_first_and_without_shares_last() -> None:
    standing = stand({H("a", "x"): 8, H("a", "y"): 0, H("a", "z"): 0, H("a", "w"): 0}, {"a:w": 0})
    assert standing.factors == {H("a", "y"): 1.0, H("a", "z"): 1.0, H("a", "x"): 0.5, H("a", "w"): 0.25}


def test_equal_users_share_a_rank() -> None:
    standing = stand({H("a", "x"): 1, H("a", "y"): 2, H("a", "z"): 2, H("a", "w"): 3})
    assert standing.factors == {H("a", "x"): 1.0, H("a", "y"): 0.75, H("a", "z"): 0.75, H("a", "w"): 0.25}


def test_equal_accounts_are_walked_as_one() -> None:
    # Each has used 4; by account the order would be a1 a2 b1 b2 (or b first), as one it is by what each had of its own.
    standing = stand({H("a", "1"): 1, H("a", "2"): 3, H("b", "1"): 1.5, H("b", "2"): 2.5})
    order = sorted(standing.factors, key=standing.factors.__getitem__, reverse=True)
    assert order == [H("a", "1"), H("b", "1"), H("b", "2"), H("a", "2")]


def test_a_user_equal_to_an_account_has_its_first_ones_rank() -> None:
    standing = stand({H("a", "x"): 4, H("a/b", "y"): 1, H("a/b", "z"): 3})
    assert standing.factors == {H("a", "x"): 1.0, H("a/b", "y"): 1.0, H("a/b", "z"): 1 / 3}


def test_rounding_parts_nobody() -> None:
    assert set(stand({H("a", "x"): 0.1 + 0.2, H("a", "y"): 0.3}).factors.values()) == {1.0}
    assert set(stand({H("a", "x"): 0.3 + 1e-9, H("a", "y"): 0.3}).factors.values()) == {1.0, 0.5}


def test_paths_are_read_with_slips() -> None:
    standing = stand({H("/a/", "x"): 1, H("a", "y"): 2, H("", "root"): 9})
    assert standing.factors == {H("/a/", "x"): 1.0, H("a", "y"): 2 / 3, H("", "root"): 1 / 3}


def test_of_nobody_nothing_is_said() -> None:
    standing = stand({})
    assert standing.factors == {}
    assert standing.factor(H("a", "x")) == 1.0


def test_the_next_before_is_one_of_a_better_rank() -> None:
    standing = stand({H("a", "x"): 1, H("a", "y"): 2, H("a", "z"): 2})
    assert [standing.ahead_of(H("a", user)) for user in "xyz"] == [None, H("a", "x"), H("a", "x")]


def test_every_share_that_is_none_is_named() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        check_shares({"a": -1.0, "b": 2.0, "c:x": float("nan")})
    assert [line.split(": ")[0] for line in caught.value.mistakes] == ["shares.a", "shares.c:x"]


def test_the_order_in_which_users_came_does_not_matter() -> None:
    used = {H("b", "z"): 9.0, H("a", "y"): 0.1, H("a", "x"): 0.7, H("a", "w"): 0.2, H("c", "v"): 9.0}
    there, back = stand(used), stand(dict(reversed(used.items())))
    assert list(there.factors.items()) == list(back.factors.items())
    assert there.used.tolist() == back.used.tolist() == [0.2, 0.7, 0.1, 9.0, 9.0]
