"""What a rank showed of its progress."""

from typing import Any

from gpuguard.jobs.ranks import Gap, RankState, dated, first_seen, same, told
from gpuguard.model.ids import BootId, SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Row


def row(mono: float, **values: Any) -> Row:
    """What is told at this moment; columns without their `rank_`."""
    told = {"pid": 100, "progress_seconds": 0.0, "phase": "step", "phase_seconds": mono - 10.0, **values}
    return Row(
        subject=SubjectId("rank:slurm/7/0"), at=Instant(boot=BootId("A"), mono=mono, utc=1e9 + mono),
        source="heartbeats", values={f"rank_{name}": value for name, value in told.items()},
    )  # fmt: skip


def after(*rows: Row) -> tuple[RankState, list[Gap]]:
    state = first_seen(0, rows[0])
    gaps: list[Gap] = []
    for one in rows[1:]:
        state, found = told(state, one)
        gaps += found
    return state, gaps


def test_silence_is_measured_from_the_sign_and_not_from_when_it_was_heard() -> None:
    state, _ = after(row(100.0, step=5, progress_seconds=7.5))
    assert state.silent(Instant(boot=BootId("A"), mono=102.0)) == 9.5


def test_a_step_is_a_gap() -> None:
    state, gaps = after(row(100.0, step=5, progress_seconds=0.5), row(103.0, step=6, progress_seconds=0.5))
    assert gaps == [Gap(phase="step", seconds=3.0)]
    assert state.step == 6


def test_several_steps_between_two_looks_are_as_many_gaps() -> None:
    _, gaps = after(row(100.0, step=5), row(102.0, step=25))
    assert gaps == [Gap(phase="step", seconds=0.1, times=20)]


def test_steps_that_are_told_all_at_once_are_one_gap_and_keep_their_pace() -> None:
    state = first_seen(0, row(100.0, step=100))
    looked = Instant(boot=BootId("A"), mono=159.0)
    after_a_minute, gaps = told(state, row(160.0, step=200), looked)
    assert gaps == (Gap(phase="step", seconds=60.0),), "a log with a line for every hundred steps"
    assert after_a_minute.pace == 0.6
    _, unseen = told(state, row(160.0, step=200), Instant(boot=BootId("A"), mono=100.2))
    assert unseen == (Gap(phase="step", seconds=0.6, times=100),), "nobody looked meanwhile"


def test_after_a_long_phase_steps_are_gaps_of_their_own() -> None:
    state = first_seen(0, row(100.0, step=5, phase="checkpoint", phase_seconds=0.0))
    now = row(144.0, step=9, phase="step", phase_seconds=3.0, progress_seconds=0.0)
    _, gaps = told(state, now, Instant(boot=BootId("A"), mono=140.0))
    assert gaps == (Gap(phase="checkpoint", seconds=41.0), Gap(phase="step", seconds=1.0, times=3))


def test_a_look_that_shows_nothing_new_is_no_gap() -> None:
    state, gaps = after(row(100.0, step=5), row(101.0, step=5, progress_seconds=1.0))
    assert gaps == []
    assert state.silent(Instant(boot=BootId("A"), mono=101.0)) == 1.0


def test_a_word_of_life_is_progress_without_a_step() -> None:
    state, gaps = after(row(100.0, step=5), row(150.0, step=5, progress_seconds=1.0))
    assert gaps == [Gap(phase="step", seconds=49.0)]
    assert state.silent(Instant(boot=BootId("A"), mono=150.0)) == 1.0


def test_a_gap_belongs_to_the_phase_in_which_it_began() -> None:
    _, gaps = after(
        row(100.0, step=5),
        row(103.0, step=6, phase="checkpoint", phase_seconds=1.0, progress_seconds=1.0),
        row(143.0, step=6, phase="step", phase_seconds=1.0, progress_seconds=1.0),
    )
    assert gaps == [Gap(phase="step", seconds=2.0), Gap(phase="checkpoint", seconds=40.0)]


def test_a_short_phase_and_the_steps_after_it() -> None:
    _, gaps = after(
        row(100.0, step=5, phase="checkpoint", phase_seconds=30.0),
        row(104.0, step=9, phase="step", phase_seconds=3.0, progress_seconds=0.0),
    )
    assert gaps == [Gap(phase="checkpoint", seconds=1.0), Gap(phase="step", seconds=1.0, times=3)]


def test_what_cannot_be_looked_at_is_no_silence() -> None:
    state, gaps = after(row(100.0, step=5), row(160.0, step=None, progress_seconds=None, gone=1))
    assert gaps == []
    assert state.step == 5
    assert state.gone


def test_another_process_or_start_is_another_rank() -> None:
    state, _ = after(row(100.0, step=5))
    assert same(state, row(101.0, step=6))
    assert not same(state, row(101.0, step=6, pid=101))
    assert not same(state, row(101.0, step=6, restart=1))
    assert same(state, row(101.0, step=6, pid=None)), "a watcher need not know the process"


def test_the_pace_of_late_and_of_old() -> None:
    rows = [row(100.0 + second, step=second) for second in range(100)]
    steady, _ = after(*rows)
    assert steady.pace is not None
    assert steady.usual is not None
    assert abs(steady.pace - 1.0) < 1e-6
    slow, _ = after(*rows, *[row(199.0 + 3 * n, step=99 + n) for n in range(1, 40)])
    assert slow.pace is not None
    assert slow.usual is not None
    assert slow.pace > 2.8
    assert slow.usual < 2.0


def test_over_how_many_steps_the_loss_has_not_moved() -> None:
    state, _ = after(row(100.0, step=5, loss_flat_steps=0), row(101.0, step=6, loss_flat_steps=1))
    assert state.flat == 1
    assert after(row(100.0, step=5))[0].flat is None, "nobody told"


def test_no_first_step_yet() -> None:
    state, _ = after(row(100.0, phase=None))
    assert state.phase == "start"
    assert not state.started
    state, _ = told(state, row(120.0, step=0))
    assert state.started


def test_when_it_ended_is_known_where_it_lived_a_moment_ago() -> None:
    lives, now, later = first_seen(0, row(100.0, step=5)), row(101.0, step=5, gone=1), row(150.0, step=5, gone=1)
    gone, _ = told(lives, now)
    ended = dated(lives, gone, lives.moved, now.at)
    assert ended.ended == now.at
    still, _ = told(ended, later)
    assert dated(ended, still, now.at, later.at).ended == now.at, "told again it is no later"
    assert dated(lives, gone, None, now.at).ended is None
    assert dated(lives, still, lives.moved, later.at).ended is None, "it may have ended any time since"
    assert dated(lives, lives, lives.moved, now.at).ended is None
