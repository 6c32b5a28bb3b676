"""Nodes and their GPUs: each state with each event, the thresholds, and what is to be done."""

import pytest

from gpuguard.errors import InvariantBroken
from gpuguard.scheduler.events import HeartbeatLost
from gpuguard.scheduler.grounds import State
from gpuguard.scheduler.nodes import (
    ASKS,
    SPENT_KEPT,
    NodeDecision,
    NodeEvent,
    NodeLife,
    bad_gpus,
    born,
    due,
    fold,
    tick,
    usable,
)
from gpuguard.scheduler.plan import Alert, Diagnose, Drain, Reclaim, Undrain
from gpuguard.scheduler.settings import Care
from tests.support.node_lives import (
    CARE,
    EVENTS,
    LIVES,
    asked,
    back,
    cleaned,
    dead,
    flapping,
    joined,
    life_of,
    lifted,
    looked,
    lost,
    moves,
    orphan,
)

U, S, D, M = "up", "suspect", "diagnosing", "maintenance"
#                          joined, suspect, confirmed, GPU drain, own lifted, other lifted, passed, failed,
#                          heartbeat lost, back, node lost, orphan, cleaned
EXPECTED: dict[str, tuple[State, ...]] = {
    "up":                     (U, D, M, U, U, U, U, M, S, U, M, U, U),
    "up, one GPU drained":    (U, D, M, U, U, U, U, M, S, U, M, U, U),
    "suspect: silent":        (U, D, M, S, S, S, U, M, S, U, M, S, S),
    # A person's lift ends the doubt and not the silence.
    "diagnosing: silence":    (D, D, M, D, S, D, U, M, D, D, M, D, D),
    "diagnosing: suspected":  (D, D, M, D, U, D, U, M, D, D, M, D, D),
    "diagnosing: rejoined":   (D, D, M, D, U, D, U, M, D, D, M, D, D),
    "maintenance: confirmed": (M, M, M, M, U, M, M, M, M, M, M, M, M),
    "maintenance: failed":    (D, M, M, M, U, M, M, M, M, M, M, M, M),
    "maintenance: lost":      (D, M, M, M, U, M, M, M, M, M, M, M, M),
    "maintenance: flaps":     (M, M, M, M, U, M, M, M, M, M, M, M, M),
}  # fmt: skip


def told(life: NodeLife, *events: NodeEvent, until: int | None = None, care: Care = CARE) -> list[NodeDecision]:
    """All decisions on the way."""
    found: list[NodeDecision] = []
    for event in events:
        step = fold(life, event, care)
        life = step.life
        found += step.decisions
    return found if until is None else [*found, *tick(life, until, care)[1]]


def words(decisions: list[NodeDecision] | tuple[NodeDecision, ...]) -> list[tuple[str, ...]]:
    """Each decision in a few words, as a story."""
    short: list[tuple[str, ...]] = []
    for decision in decisions:
        match decision:
            case Drain():
                short.append(("drain", decision.state, decision.rule, *map(str, decision.gpus)))
            case Undrain():
                short.append(("undrain", *map(str, decision.gpus)))
            case Reclaim():
                short.append(("reclaim", *map(str, decision.gpus)))
            case Diagnose():
                short.append(("diagnose", decision.rule))
            case Alert():
                short.append(("alert", decision.rule))
    return short


@pytest.mark.parametrize("name", LIVES)
def test_each_life_is_in_its_state(name: str) -> None:
    state, life = LIVES[name]
    assert life.state == state
    assert usable(life) == (state == "up")


@pytest.mark.parametrize("name", LIVES)
def test_each_state_with_each_event(name: str) -> None:
    assert dict(zip(EVENTS, moves()[name], strict=True)) == dict(zip(EVENTS, EXPECTED[name], strict=True))


def test_the_table_has_every_life() -> None:
    assert list(EXPECTED) == list(LIVES) == list(moves())


# Heartbeats


def test_a_blip_takes_no_new_work_and_ends_with_no_decision() -> None:
    life = life_of(lost(100))
    assert not usable(life)
    assert (life.state, life.since, due(life, CARE)) == ("suspect", 100, 160)
    step = fold(life, back(159), CARE)
    assert step.decisions == ()
    assert usable(step.life)
    assert step.life.phase.returns == ()
    assert due(step.life, CARE) is None


def test_silence_at_the_threshold_is_looked_into_and_stays_so_when_it_beats_again() -> None:
    life, decisions = tick(life_of(lost(100)), 160, CARE)
    assert words(decisions) == [("drain", "diagnosing", "silence"), ("diagnose", "silence")]
    assert (life.state, life.since) == ("diagnosing", 160)
    assert [d.cause for d in decisions] == ["silence@100", "silence@100"]
    step = fold(life, back(170), CARE)
    assert (step.life.state, step.decisions) == ("diagnosing", ())


def test_a_beat_in_the_second_of_the_threshold_is_too_late() -> None:
    assert life_of(lost(100), back(160)).state == "diagnosing"


def test_a_passed_diagnosis_returns_it_and_counts() -> None:
    step = fold(life_of(lost(100)), looked(200, passed=True), CARE)
    assert words(step.decisions) == [("drain", "diagnosing", "silence"), ("diagnose", "silence"), ("undrain",)]
    assert usable(step.life)
    assert step.life.phase.returns == (200,)


def test_long_silence_tells_people_once_and_ends_nothing() -> None:
    life = life_of(lost(100), until=699)
    life, decisions = tick(life, 700, CARE)
    assert words(decisions) == [("alert", "silence")]
    assert life.state == "diagnosing"
    assert words(tick(life, 10**9, CARE)[1]) == [("diagnose", "silence")] * (ASKS - 1) + [("alert", "unanswered")]


def test_repeated_losses_do_not_start_the_silence_again() -> None:
    assert due(life_of(lost(100), lost(140)), CARE) == 160


def test_a_late_loss_from_before_the_last_beat_is_nothing() -> None:
    life = life_of(lost(100), back(120))
    step = fold(life, lost(110), CARE)
    assert (step.life, step.decisions) == (life, ())


def test_a_late_beat_ends_no_newer_silence() -> None:
    life = life_of(lost(100), lost(150), back(120))
    assert (life.state, life.last, due(life, CARE)) == ("suspect", 150, 210)


def test_a_loss_told_long_after_is_looked_into_at_once() -> None:
    life = life_of(asked(1000, "g", gpus=(0,)))
    assert fold(life, lost(100), CARE).life.state == "diagnosing"


def test_loss_and_beat_of_one_second_leave_it_silent() -> None:
    assert life_of(lost(100), back(100)) == life_of(back(100), lost(100))
    assert life_of(lost(100), back(100)).state == "suspect"


# Death


def test_a_lost_node_ends_what_ran_by_then_once() -> None:
    step = fold(life_of(), dead(100), CARE)
    assert step.ends is not None
    assert (step.ends.mask, step.ends.until) == (None, 100)
    assert words(step.decisions) == [("drain", "maintenance", "lost"), ("alert", "lost")]
    assert fold(step.life, dead(100), CARE) == (step.life, (), None)
    late = life_of(dead(100), joined(200), looked(300, passed=True))
    assert usable(late)
    assert fold(late, dead(100), CARE) == (late, (), None)


def test_a_rebooted_node_is_looked_into_before_it_works() -> None:
    found = told(life_of(dead(100)), joined(200), looked(300, passed=True))
    assert words(found) == [("drain", "diagnosing", "rejoined"), ("diagnose", "rejoined"), ("undrain",)]


def test_loss_and_joining_in_one_second_is_a_reboot() -> None:
    assert life_of(dead(100), joined(100)) == life_of(joined(100), dead(100))
    assert life_of(dead(100), joined(100)).state == "diagnosing"
    assert fold(life_of(joined(100)), dead(100), CARE).ends is not None


def test_a_reboot_told_after_the_diagnosis_that_followed_it_is_answered_but_ends_the_work() -> None:
    step = fold(life_of(joined(200), looked(300, passed=True)), dead(150), CARE)
    assert usable(step.life)
    assert step.ends is not None
    assert step.ends.until == 150


def test_failed_diagnosis_ends_work_only_where_the_node_is_silent() -> None:
    silent = fold(life_of(lost(100)), looked(200, passed=False), CARE)
    assert silent.ends is not None
    assert (silent.ends.mask, silent.ends.rule, silent.life.state) == (None, "failed", "maintenance")
    beating = fold(life_of(asked(100, "d", severity="suspect")), looked(200, passed=False), CARE)
    assert beating.ends is None
    assert words(beating.decisions) == [("drain", "maintenance", "failed"), ("alert", "failed")]


def test_after_a_failure_is_lifted_the_older_doubt_is_looked_into() -> None:
    life = life_of(asked(100, "d", severity="suspect"), looked(200, passed=False), lifted(300, "failed@200", by="anna"))
    assert life.state == "diagnosing"
    assert usable(fold(life, looked(400, passed=True), CARE).life)


# Drains


def test_the_same_id_is_the_same_event_whatever_it_says_and_when_it_is_over() -> None:
    life = life_of(asked(100, "d", gpus=(1,)))
    again = fold(life, asked(150, "d", running="end"), CARE)
    assert again == (life, (), None)
    over = life_of(asked(100, "d"), lifted(200, "d"))
    assert fold(over, asked(300, "d", running="end"), CARE) == (over, (), None)


def test_a_lift_that_overtakes_its_drain_counts() -> None:
    assert usable(life_of(lifted(200, "d"), asked(100, "d")))


def test_several_drains_hold_a_node_until_the_last_is_gone() -> None:
    life = life_of(asked(100, "a"), asked(110, "b"), asked(120, "c", expires=400))
    step = fold(life, lifted(200, "a"), CARE)
    assert (step.life.state, step.decisions) == ("maintenance", ())
    step = fold(step.life, lifted(300, "b"), CARE)
    assert (step.life.state, step.decisions, due(step.life, CARE)) == ("maintenance", (), 400)
    life, decisions = tick(step.life, 400, CARE)
    assert words(decisions) == [("undrain",)]
    assert usable(life)


def test_from_known_bad_to_doubt_is_told() -> None:
    found = told(life_of(asked(100, "a"), asked(110, "b", severity="suspect")), lifted(200, "a"))
    assert words(found) == [("drain", "diagnosing", "suspected"), ("diagnose", "suspected")]


def test_lifted_while_silent_is_told_and_so_is_its_return() -> None:
    found = told(life_of(asked(100, "a"), lost(190)), lifted(200, "a"), back(210))
    assert words(found) == [("drain", "suspect", "silent"), ("undrain",)]


def test_a_lapsed_or_answered_drain_that_comes_late_is_nothing() -> None:
    life = life_of(looked(500, passed=True))
    assert fold(life, asked(100, "d", severity="suspect", running="end"), CARE) == (life, (), None)
    assert fold(life, asked(100, "e", expires=500), CARE) == (life, (), None)


def test_a_diagnosis_answers_doubts_of_earlier_seconds_alone() -> None:
    assert life_of(asked(100, "d", severity="suspect"), looked(100, passed=True)).state == "diagnosing"
    assert usable(life_of(asked(100, "d", severity="suspect"), looked(101, passed=True)))


@pytest.mark.parametrize("severity", ["suspect", "confirmed"])
def test_a_bad_gpu_leaves_the_pool_and_the_node_stays(severity: str) -> None:
    step = fold(life_of(), asked(100, "d", gpus=(3, 5), severity=severity), CARE)
    assert usable(step.life)
    assert bad_gpus(step.life) == 0b101000
    rule = "suspected" if severity == "suspect" else "confirmed"
    assert words(step.decisions) == [("drain", "up", rule, "3", "5")]
    assert step.ends is None


def test_a_gpu_with_two_drains_leaves_once_and_returns_with_the_last() -> None:
    life = life_of(asked(100, "a", gpus=(3,)))
    found = told(life, asked(110, "b", gpus=(3, 4)), lifted(120, "a"), lifted(130, "b"))
    assert words(found) == [("drain", "up", "confirmed", "4"), ("undrain", "3", "4")]
    assert [d.cause for d in found] == ["b", ""]


def test_running_work_ends_only_where_it_is_asked() -> None:
    gpu = fold(life_of(), asked(100, "d", gpus=(3,), running="end"), CARE)
    assert gpu.ends is not None
    assert (gpu.ends.mask, gpu.ends.until, gpu.ends.cause) == (0b1000, 100, "d")
    node = fold(life_of(), asked(100, "d", running="end"), CARE)
    assert node.ends is not None
    assert node.ends.mask is None
    assert fold(life_of(), asked(100, "d"), CARE).ends is None


def test_gpus_that_the_node_does_not_have_are_no_node() -> None:
    life = life_of(asked(100, "d", gpus=(-1, 8, 10**12)))
    assert usable(life)
    assert bad_gpus(life) == 0
    assert bad_gpus(fold(life, joined(200, gpus=16), CARE).life) == 1 << 8


# Flaps


def test_the_third_return_in_the_window_needs_a_person() -> None:
    assert usable(life_of(*flapping(2)))
    step = fold(life_of(*flapping(3)[:-1]), flapping(3)[-1], CARE)
    assert words(step.decisions) == [("alert", "flaps")]
    assert (step.life.state, step.life.since) == ("maintenance", 1200)
    stays = life_of(*flapping(3), joined(2000), looked(2100, passed=True), until=10**8)
    assert stays.state == "maintenance"
    freed = fold(stays, lifted(10**8, "flaps@1250", by="anna"), CARE)
    assert words(freed.decisions) == [("undrain",)]
    assert freed.life.phase.returns == life_of(*flapping(3)).phase.returns


def test_returns_out_of_the_window_and_before_a_persons_word_do_not_count() -> None:
    care = Care(flap_window=120)
    assert usable(life_of(*flapping(9), care=care))
    vouched = [
        event if n % 4 != 3 else lifted(event.at, f"f{n // 2}", by="anna") for n, event in enumerate(flapping(9))
    ]
    assert usable(life_of(*vouched))
    assert usable(life_of(*flapping(9), care=Care(flaps=0)))


def test_after_the_guards_bar_is_lifted_it_counts_from_nothing() -> None:
    life = life_of(*flapping(3), lifted(2000, "flaps@1250"))
    assert usable(life)
    again = [asked(3000, "x"), lifted(3100, "x"), asked(3200, "y"), lifted(3300, "y")]
    for event in again:
        life = fold(life, event, CARE).life
    assert usable(life)
    assert life.phase.returns == (3100, 3300)


def test_out_and_back_in_one_second_is_no_return() -> None:
    events = [asked(200, "b"), lifted(200, "a")]
    lives = [life_of(asked(100, "a"), *order) for order in (events, events[::-1])]
    assert lives[0] == lives[1]
    assert (lives[0].state, lives[0].since, lives[0].phase.returns) == ("maintenance", 100, ())


def test_the_guard_does_not_speak_of_a_return_that_the_same_second_took_back() -> None:
    *before, third = flapping(3)
    events = [third, asked(third.at, "x", severity="suspect")]
    lives = [life_of(*before, *order) for order in (events, events[::-1])]
    assert lives[0] == lives[1]
    assert (lives[0].state, [bar.id for bar in lives[0].bars]) == ("diagnosing", ["x"])


# Orphans


def test_an_orphan_keeps_its_gpu_out_until_it_is_clean_and_is_reclaimed_once() -> None:
    step = fold(life_of(), orphan(100, 2, 3), CARE)
    assert words(step.decisions) == [("drain", "up", "orphan", "2", "3"), ("reclaim", "2", "3")]
    assert (usable(step.life), bad_gpus(step.life)) == (True, 0b1100)
    again = fold(step.life, orphan(160, 2, 3), CARE)
    assert again.decisions == ()
    more = fold(again.life, orphan(170, 4), CARE)
    assert words(more.decisions) == [("drain", "up", "orphan", "4"), ("reclaim", "4")]
    clean = fold(more.life, cleaned(180, 2, 3), CARE)
    assert words(clean.decisions) == [("undrain", "2", "3")]
    assert bad_gpus(clean.life) == 0b10000


def test_reclaim_is_repeated_after_a_time_then_a_person_is_told_then_it_rests() -> None:
    life = life_of(orphan(100, 2))
    assert due(life, CARE) == 100 + CARE.again
    assert tick(life, 699, CARE) == (life, ())
    life, decisions = tick(life, 10**9, CARE)
    assert words(decisions) == [("reclaim", "2")] * (ASKS - 1) + [("alert", "unanswered")]
    assert due(life, CARE) is None
    assert bad_gpus(life) == 0b100


def test_late_and_doubled_words_of_orphans() -> None:
    clean = life_of(orphan(100, 2), cleaned(200, 2))
    assert fold(clean, orphan(100, 2), CARE) == (clean, (), None)
    assert bad_gpus(fold(clean, orphan(150, 2), CARE).life) == 0
    assert bad_gpus(life_of(orphan(100, 2), orphan(200, 2), cleaned(150, 2))) == 0b100
    assert life_of(orphan(100, 2), cleaned(100, 2)) == life_of(cleaned(100, 2), orphan(100, 2))
    assert bad_gpus(life_of(orphan(100, 2), cleaned(100, 2))) == 0b100


# Time


def test_time_does_not_turn_back_and_ticks_more_often_change_nothing() -> None:
    life = life_of(lost(100), asked(110, "d", expires=5000), orphan(120, 1))
    assert tick(life, 50, CARE) == (life, ())
    seldom, all_at_once = tick(life, 9000, CARE)
    often: list[NodeDecision] = []
    step = life
    for now in range(130, 9001, 7):
        step, more = tick(step, now, CARE)
        often += more
    step, more = tick(step, 9000, CARE)
    assert (step, [*often, *more]) == (seldom, list(all_at_once))
    assert fold(seldom, orphan(60, 7), CARE).life.last == seldom.last


def test_a_care_of_no_patience_comes_to_rest() -> None:
    care = Care(heartbeat=0, dead=0, again=0)
    life = life_of(lost(100), orphan(100, 1), care=care)
    assert life.state == "diagnosing"
    life, decisions = tick(life, 10**6, care)
    assert due(life, care) is None
    assert len(decisions) == 2 * ASKS


def test_people_are_told_once() -> None:
    assert fold(life_of(dead(100)), back(200), CARE).decisions == ()
    given_up = life_of(asked(100, "d", severity="suspect"), orphan(100, 1), until=10**5)
    assert fold(given_up, back(10**6), CARE).decisions == ()


def test_what_was_asked_is_not_asked_anew_for_a_drain_that_came_and_went_in_one_second() -> None:
    start = life_of(asked(100, "d", severity="suspect"))
    came_and_went = life_of(asked(100, "d", severity="suspect"), asked(200, "x"), lifted(200, "x"))
    assert came_and_went.phase == start.phase


def test_two_words_of_one_second_on_how_many_gpus_there_are() -> None:
    assert life_of(joined(50, gpus=4), joined(50, gpus=6)).gpus == life_of(joined(50, gpus=6), joined(50, gpus=4)).gpus
    assert life_of(joined(50, gpus=4)).gpus == 4


def test_an_event_of_another_node_is_our_mistake() -> None:
    with pytest.raises(InvariantBroken, match="n2 reached the life of n1"):
        fold(born(joined()), HeartbeatLost(at=1, node="n2"), CARE)


def test_ids_that_are_over_are_remembered_to_a_limit() -> None:
    life = life_of(*(lifted(100 + n, f"d{n}") for n in range(SPENT_KEPT + 10)))
    assert len(life.spent) == SPENT_KEPT
    assert life.knows(f"d{SPENT_KEPT + 9}")
    assert not life.knows("d0")


def test_every_decision_says_its_rule_and_why() -> None:
    found = told(
        life_of(), lost(100), back(170), looked(200, passed=True), orphan(300, 1), asked(310, "d", gpus=(2,)),
        dead(400), joined(500), looked(600, passed=False), lifted(700, "failed@600", by="anna"), cleaned(800, 1),
        until=10**6,
    )  # fmt: skip
    assert {type(decision) for decision in found} == {Drain, Undrain, Diagnose, Reclaim, Alert}
    for decision in found:
        assert decision.rule
        assert decision.why.startswith("n1")
