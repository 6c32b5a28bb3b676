"""Who waits, for what, and who may run when something ends."""

import pytest

from gpuguard.scheduler.dependencies import NOTHING, Change, Dependencies, Standing
from gpuguard.scheduler.request import Dependency, Job


def ok(name: str) -> Dependency:
    return Dependency(relation="afterok", name=name)


def any_end(name: str) -> Dependency:
    return Dependency(relation="afterany", name=name)


def told(word: str) -> Dependency:
    return Dependency(relation="condition", name=word)


SINGLE = Dependency(relation="singleton", name="")


def add(
    index: Dependencies, name: str, *after: Dependency, title: str = "", user: str = "u", walltime: int | None = 10,
    prepares: bool = False,
) -> Standing:  # fmt: skip
    """Adds a job to whose parents nothing has happened yet."""
    job = Job(id=name, user=user, name=title, walltime=walltime, after=after, prepares=prepares)
    return index.add(job, lambda parent: None)


def reasons(index: Dependencies, name: str) -> list[str]:
    return [str(reason) for reason in index.blocked(name)]


def test_a_child_waits_for_the_success_of_all_its_parents() -> None:
    index = Dependencies()
    assert [add(index, name) for name in "ab"] == ["eligible", "eligible"]
    assert add(index, "c", ok("a"), ok("b")) == "waits"
    assert reasons(index, "c") == ["waits until job a has completed", "waits until job b has completed"]
    assert index.held("c")
    assert index.ended("a", True) == NOTHING
    assert reasons(index, "c") == ["waits until job b has completed"]
    assert index.ended("b", True) == Change(eligible=("c",))
    assert index.blocked("c") == ()
    assert not index.held("c")


def test_a_failure_ends_those_that_wanted_success_and_frees_those_that_wanted_an_end() -> None:
    index = Dependencies()
    add(index, "a")
    add(index, "b", ok("a"))
    add(index, "c", ok("b"))
    add(index, "d", any_end("b"))
    add(index, "e", any_end("a"), ok("a"))
    assert index.ended("a", False) == Change(eligible=("d",), never=(("b", "a"), ("e", "a"), ("c", "b")))
    assert index.ended("b", False) == NOTHING


@pytest.mark.parametrize(("ended", "standing"), [(True, "eligible"), (False, "never"), (None, "waits")])
def test_parents_that_have_ended_are_asked_for(ended: bool | None, standing: Standing) -> None:
    index = Dependencies()
    assert index.add(Job(id="b", after=(ok("a"),)), {"a": ended}.get) == standing
    assert index.add(Job(id="c", after=(any_end("a"),)), {"a": ended}.get) == ("waits" if ended is None else "eligible")
    assert index.held("b") == (standing == "waits")


def test_one_that_never_runs_leaves_nothing_behind() -> None:
    index = Dependencies()
    after = (ok("alive"), told("word"), ok("dead"))
    assert index.add(Job(id="b", name="n", after=after), {"dead": False}.get) == "never"
    assert index.waiters("alive") == ()
    assert index.told("word") == NOTHING
    assert add(index, "c", SINGLE, title="n") == "eligible"


def test_a_word_holds_until_it_is_met_and_again_when_it_is_not() -> None:
    index = Dependencies()
    assert add(index, "a", told("model")) == "waits"
    assert reasons(index, "a") == ["waits until model is told"]
    assert index.told("model") == Change(eligible=("a",))
    assert index.told("model") == NOTHING
    assert add(index, "b", told("model")) == "eligible"
    index.started("b")
    assert index.told("model", met=False) == Change(held=("a",))
    assert index.told("model", met=False) == NOTHING
    assert index.requeued("b") == Change(held=("b",))
    assert index.told("model") == Change(eligible=("a", "b"))


def test_singletons_go_one_by_one_behind_all_that_stand_before_them() -> None:
    index = Dependencies()
    assert add(index, "a", title="n") == "eligible"
    assert add(index, "b", SINGLE, title="n") == "waits"
    assert add(index, "c", SINGLE, title="n") == "waits"
    assert add(index, "other", SINGLE, title="n", user="v") == "eligible"
    assert reasons(index, "b") == ["waits until no other job named n is before it or runs"]
    assert index.ended("a", False) == Change(eligible=("b",))
    assert index.started("b") == NOTHING
    assert index.ended("b", True) == Change(eligible=("c",))


def test_a_singleton_waits_for_one_behind_it_that_runs_already() -> None:
    index = Dependencies()
    add(index, "a", title="n")
    add(index, "b", SINGLE, title="n")
    add(index, "c", title="n")
    index.started("c")
    assert index.ended("a", True) == NOTHING
    assert index.requeued("c") == Change(eligible=("b",))
    assert index.started("c") == Change(held=("b",))
    assert index.ended("c", True) == Change(eligible=("b",))


def test_a_singleton_that_is_started_again_keeps_its_place() -> None:
    index = Dependencies()
    add(index, "a", SINGLE, title="n")
    add(index, "b", SINGLE, title="n")
    index.started("a")
    assert index.requeued("a") == Change(eligible=("a",))
    assert index.held("b")


def test_a_singleton_that_can_never_run_lets_the_next_one_pass() -> None:
    index = Dependencies()
    add(index, "a")
    add(index, "b", ok("a"), SINGLE, title="n")
    add(index, "c", SINGLE, title="n")
    assert index.ended("a", False) == Change(never=(("b", "a"),), eligible=("c",))


def test_jobs_of_which_nobody_knows_change_nothing() -> None:
    index = Dependencies()
    assert add(index, "a") == "eligible"
    assert index.started("a") == index.requeued("a") == index.ended("a", True) == NOTHING
    assert index.blocked("a") == ()
    assert index.parents("a") == index.waiters("a") == index.room_for("a") == ()
    assert index.expected("a", lambda name: None) == 0


def test_ten_thousand_in_a_row_fall_at_once() -> None:
    index = Dependencies()
    add(index, "0")
    for number in range(1, 10_000):
        add(index, str(number), ok(str(number - 1)))
    assert index.expected("9999", lambda name: 100) == 100 + 9998 * 10
    never = index.ended("0", False).never
    assert len(never) == 9_999
    assert never[-1] == ("9999", "9998")


def test_a_copy_goes_its_own_way() -> None:
    index = Dependencies()
    add(index, "a", title="n")
    add(index, "b", ok("a"), told("w"), SINGLE, title="n")
    other = index.copy()
    assert index.ended("a", False) == Change(never=(("b", "a"),))
    assert len(other.blocked("b")) == 3
    other.told("w")
    assert other.ended("a", True) == Change(eligible=("b",))


def test_a_place_is_planned_at_the_end_of_the_longest_way() -> None:
    index = Dependencies()
    add(index, "a")
    add(index, "b")
    add(index, "c", ok("a"), walltime=7)
    add(index, "d", ok("a"), any_end("c"), ok("b"))
    ends = {"a": 100, "b": 105}.get
    assert index.expected("d", ends) == 107
    assert index.expected("c", ends) == 100
    index.ended("a", True)
    assert index.expected("d", {"c": 90, "b": 105}.get) == 105


def test_no_place_is_planned_where_nobody_can_say_when() -> None:
    index = Dependencies()
    add(index, "a")
    add(index, "endless", ok("a"), walltime=None)
    add(index, "b", ok("endless"))
    add(index, "c", told("w"))
    add(index, "d", ok("c"), ok("a"))
    assert index.expected("endless", lambda name: 5) == 5
    assert index.expected("endless", lambda name: None) is None
    assert index.expected("b", lambda name: 5) is None
    assert index.expected("c", lambda name: 5) is None
    assert index.expected("d", lambda name: 5) is None


def test_a_singletons_place_is_planned_behind_those_before_it() -> None:
    index = Dependencies()
    add(index, "a", title="n")
    add(index, "b", SINGLE, title="n")
    add(index, "c", title="n")
    add(index, "d", SINGLE, title="n")
    assert index.expected("d", {"a": 100, "c": 50}.get) == 110
    index.started("c")
    assert index.expected("b", {"a": 100, "c": 130}.get) == 130
    assert index.expected("d", {"a": 100, "c": 130}.get) == 140


def test_room_is_kept_for_the_preparations_above_however_far() -> None:
    index = Dependencies()
    add(index, "clean", prepares=True)
    add(index, "unused", prepares=True)
    add(index, "tokens", ok("clean"), prepares=True)
    add(index, "check", ok("tokens"))
    add(index, "train", ok("check"), ok("clean"))
    assert index.room_for("train") == ("clean", "tokens")
    assert index.waiters("clean") == ("tokens", "train")
    index.ended("clean", True)
    index.started("tokens")
    assert index.room_for("train") == ("tokens",)
    index.ended("tokens", True)
    assert index.room_for("train") == ()
