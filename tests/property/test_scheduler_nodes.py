"""Lives of nodes under any events: in any order, doubled, late, at once."""

from hypothesis import given
from hypothesis import strategies as st

from gpuguard.scheduler.events import DrainLifted, HeartbeatLost
from gpuguard.scheduler.grounds import STATE_OF
from gpuguard.scheduler.nodes import NodeEvent, NodeLife, bad_gpus, due, fold, tick, usable
from gpuguard.scheduler.settings import Care
from tests.support.node_lives import asked, back, cleaned, dead, joined, life_of, lifted, looked, lost, orphan

CARE = Care(heartbeat=6, dead=20, flaps=2, flap_window=60, again=9)
IDS = "abcdef"


def drain_of(id: str, at: int) -> NodeEvent:
    """What the id says, always the same: two are on GPUs, two lapse, half are suspicions."""
    n = IDS.index(id)
    return asked(
        at,
        id,
        gpus=(n,) if n < 2 else (),
        severity="suspect" if n % 2 else "confirmed",
        expires=15 * n if n % 3 == 0 else None,
        running="end" if n == 4 else "keep",
    )


def events_at(instants: st.SearchStrategy[int]) -> st.SearchStrategy[NodeEvent]:
    gpus = st.integers(0, 3)
    own = st.builds(lambda word, at: f"{word}@{at}", st.sampled_from(["lost", "failed", "silence", "flaps"]), instants)
    return st.one_of(
        st.builds(joined, instants),
        st.builds(drain_of, st.sampled_from(IDS), instants),
        st.builds(lifted, instants, st.sampled_from(IDS) | own, st.sampled_from(["", "anna"])),
        st.builds(looked, instants, st.booleans()),
        st.builds(lost, instants),
        st.builds(back, instants),
        st.builds(dead, instants),
        st.builds(orphan, instants, gpus),
        st.builds(cleaned, instants, gpus),
    )


ANY_TIME = events_at(st.integers(0, 80))
HISTORIES = st.lists(ANY_TIME, max_size=12)


def holds(life: NodeLife) -> None:
    """What is true of any life."""
    wide = [bar for bar in life.bars if bar.mask is None]
    worst = {STATE_OF[bar.ground] for bar in wide}
    assert usable(life) == (not wide and life.silence is None)
    if "maintenance" in worst or "diagnosing" in worst:
        assert life.state == ("maintenance" if "maintenance" in worst else "diagnosing")
    for bar in life.bars:
        assert bar.expires is None or bar.expires > life.last
        assert not bar.mask or bad_gpus(life) & bar.mask == bar.mask
    assert len({bar.id for bar in life.bars}) == len(life.bars)
    assert life.since <= life.last
    next_due = due(life, CARE)
    assert next_due is None or next_due > life.last


@given(HISTORIES)
def test_no_interleaving_makes_it_usable_under_a_ground_and_time_only_goes_on(events: list[NodeEvent]) -> None:
    life = life_of(care=CARE)
    for event in events:
        step = fold(life, event, CARE)
        assert step.life.last >= life.last
        holds(step.life)
        life = step.life


@given(HISTORIES, ANY_TIME, HISTORIES)
def test_an_event_told_again_at_any_later_time_of_telling_changes_nothing(
    before: list[NodeEvent], event: NodeEvent, between: list[NodeEvent]
) -> None:
    life = fold(life_of(*before, care=CARE), event, CARE).life
    assert fold(life, event, CARE) == (life, (), None)
    for other in between:
        life = fold(life, other, CARE).life
    life, _ = tick(life, event.at, CARE)
    again = fold(life, event, CARE)
    if isinstance(event, HeartbeatLost) and event.at >= life.heard:
        # The start of a silence may be put right, when a late beat had cut it short.
        assert (again.ends, usable(again.life)) == (None, False)
    else:
        assert again == (life, (), None)


@given(HISTORIES, st.data())
def test_simultaneous_events_in_any_order_give_the_same_life(before: list[NodeEvent], data: st.DataObject) -> None:
    start = life_of(*before, care=CARE)
    now = data.draw(st.integers(start.last, start.last + 30))
    events = data.draw(st.lists(events_at(st.just(now)), min_size=2, max_size=6))
    orders = [events, events[::-1], data.draw(st.permutations(events))]
    lives = []
    for order in orders:
        life = start
        for event in order:
            life = fold(life, event, CARE).life
        lives.append(life)
    assert lives[0] == lives[1] == lives[2]


@given(HISTORIES)
def test_every_drain_that_expires_ends_and_every_life_comes_to_rest(events: list[NodeEvent]) -> None:
    life, _ = tick(life_of(*events, care=CARE), 10**6, CARE)
    assert all(bar.expires is None for bar in life.bars)
    assert due(life, CARE) is None
    assert tick(life, 10**9, CARE) == (life, ())
    holds(life)


@given(HISTORIES, st.lists(st.integers(0, 200), max_size=8))
def test_ticks_in_between_change_nothing(events: list[NodeEvent], instants: list[int]) -> None:
    life = life_of(*events, care=CARE)
    often, told = life, ()
    for now in sorted(instants):
        often, more = tick(often, now, CARE)
        told += more
    often, more = tick(often, 200, CARE)
    assert (often, told + more) == tick(life, 200, CARE)


@given(st.lists(ANY_TIME, max_size=10), st.integers(0, 80), st.data())
def test_in_whatever_order_it_is_told_a_drain_that_nothing_ends_holds(
    events: list[NodeEvent], at: int, data: st.DataObject
) -> None:
    """`e` is on the node, for what is known to be bad, and never lapses."""
    others = [event for event in events if not (isinstance(event, DrainLifted) and event.id == "e")]
    life = life_of(*data.draw(st.permutations([*others, drain_of("e", at)])), care=CARE)
    assert tick(life, 10**6, CARE)[0].state == life.state == "maintenance"
