"""The simulated job shows what a real one would: its rows are of known columns, and what it does is seen in them."""

from collections import Counter
from collections.abc import Sequence

import pytest

from gpuguard.jobs.activity import Activity
from gpuguard.jobs.tasks import TaskState
from gpuguard.jobs.views import GpuView, TaskView
from gpuguard.model.events import Sweep
from gpuguard.model.ids import SubjectId, gpu, kind_of, rank, task
from gpuguard.model.jobs import JOB_QUANTITIES
from gpuguard.model.quantities import GPU_QUANTITIES
from gpuguard.model.readings import Row, plausible
from tests.support.training import BEGIN, FAULTS, JOB, Part, Told, Training

KNOWN = {quantity.name: quantity for quantity in (*GPU_QUANTITIES, *JOB_QUANTITIES)}
WARM = (Part("start", 30), Part("steps", 90))
BENIGN = (
    *WARM, Part("compile", 40), Part("checkpoint", 30, how="first"), Part("steps", 20),
    Part("checkpoint", 30, how="all"), Part("checkpoint", 30, how="async"), Part("evaluation", 40, how="all"),
    Part("evaluation", 40, how="first"), Part("recompile", 30), Part("slow storage", 40, how="trickle"),
    Part("slow storage", 40, rank=1, how="stall"), Part("starved", 60), Part("restart", 40), Part("steps", 20),
    Part("done", 5),
)  # fmt: skip


def live(*plan: Part, seed: int = 1, ranks: int = 4, told: Told = "heartbeats") -> tuple[Training, list[Sweep]]:
    job = Training(seed=seed, ranks=ranks, plan=plan, told=told)
    return job, list(job.sweeps())


def gpus(job: Training, sweeps: Sequence[Sweep]) -> list[GpuView]:
    """What the folds make of each GPU at the end."""
    views = []
    for member in job.members:
        name, activity, values = gpu(job.address(member)), Activity(), {"power_limit_watts": 700.0}
        for sweep in sweeps:
            if sweep.source == "nvml" and sweep.rate == "fast":
                row = Row(subject=name, at=sweep.at, source="nvml", values=values | sweep.rows[name])
                activity = activity.seen(row, sweep.at)
        views.append(activity.view(name, sweeps[-1].at))
    return views


def tasks(job: Training, sweeps: Sequence[Sweep]) -> list[TaskView]:
    """What the folds make of each process at the end."""
    views = []
    for member in job.members:
        name, state = task(member.pid), TaskState()
        for sweep in sweeps:
            if name in sweep.rows:
                state = state.seen(Row(subject=name, at=sweep.at, source="tasks", values=sweep.rows[name]), sweep.at)
        views.append(state.view(sweeps[-1].at))
    return views


@pytest.mark.parametrize("told", ["heartbeats", "file", "file of rank 0", "none"])
def test_every_value_is_of_a_known_column_of_its_subject_and_can_be(told: Told) -> None:
    _, sweeps = live(*BENIGN, told=told)
    for sweep in sweeps:
        for subject, values in sweep.rows.items():
            for name, value in values.items():
                assert KNOWN[name].of == kind_of(subject), name
                assert plausible(KNOWN[name], value), (name, value)
                if KNOWN[name].kind != "text":
                    assert not isinstance(value, str), name


def test_the_same_seed_tells_the_same_story_and_another_one_another() -> None:
    assert live(*BENIGN)[1] == live(*BENIGN)[1]
    assert live(*BENIGN)[1] != live(*BENIGN, seed=2)[1]


def test_each_source_has_its_pace_and_time_only_goes_forward() -> None:
    _, sweeps = live(*WARM)
    paces = Counter(f"{sweep.source}/{sweep.rate}" for sweep in sweeps)
    assert paces == {
        "heartbeats/fast": 121, "nvml/fast": 24, "nvml/medium": 5, "tasks/fast": 12, "slurm/medium": 5,
    }  # fmt: skip
    assert [sweep.at.mono for sweep in sweeps] == sorted(sweep.at.mono for sweep in sweeps)
    assert len({sweep.id for sweep in sweeps}) == len(sweeps)


@pytest.mark.parametrize("told", ["file", "none"])
def test_progress_may_be_known_otherwise_or_not_at_all(told: Told) -> None:
    _, sweeps = live(*WARM, told=told)
    sources = {sweep.source for sweep in sweeps}
    assert "heartbeats" not in sources
    assert ("watchers" in sources) == (told == "file")


def test_counters_never_go_back_but_for_another_process() -> None:
    last: dict[tuple[SubjectId, str], float] = {}
    for sweep in live(*BENIGN)[1]:
        for subject, values in sweep.rows.items():
            for name, value in values.items():
                if KNOWN[name].kind == "counter" and isinstance(value, int | float):
                    assert value >= last.get((subject, name), 0.0)
                    last[subject, name] = value


def test_training_makes_steps_and_its_gpus_work() -> None:
    job, sweeps = live(*WARM)
    assert [member.step for member in job.members] == pytest.approx([80] * 4, abs=15)
    assert {view.pattern for view in gpus(job, sweeps)} == {"working"}
    assert all(view.still == 0.0 for view in tasks(job, sweeps))


@pytest.mark.parametrize("kind", FAULTS)
def test_after_a_fault_nobody_moves_and_whoever_is_not_at_fault_spins(kind: str) -> None:
    job, sweeps = live(*WARM, Part(kind, 120, rank=2))
    beats = [sweep.rows for sweep in sweeps if sweep.source == "heartbeats"]
    for number in range(4):
        silent = beats[-1][rank(JOB, number)]["rank_progress_seconds"]
        assert silent == pytest.approx(120, abs=10)
    patterns = [view.pattern for view in gpus(job, sweeps)]
    theirs = "spinning" if kind in ("loop", "mismatch", "partition") else "idle"
    assert patterns == ["spinning", "spinning", theirs, "spinning"]
    culprit = tasks(job, sweeps)[2]
    assert culprit.gone == (kind == "killed")
    assert (culprit.still > 90) == (kind in ("stopped", "locked", "hang in storage"))
    assert all(view.still == 0.0 for view in tasks(job, sweeps)[:2])
    assert job.fault_at == pytest.approx(BEGIN + 120, abs=10)


def test_a_kernel_that_loops_holds_all_sms() -> None:
    job, sweeps = live(*WARM, Part("loop", 60, rank=2))
    rows = [sweep.rows for sweep in sweeps if sweep.source == "nvml" and sweep.rate == "fast"][-1]
    held = [rows[gpu(job.address(member))]["sm_active_ratio"] for member in job.members]
    assert [value > 0.9 for value in held if isinstance(value, float)] == [False, False, True, False]


def test_a_checkpoint_of_one_rank_writes_while_the_others_spin() -> None:
    job, sweeps = live(*WARM, Part("checkpoint", 100, how="first"))
    sweeps = [sweep for sweep in sweeps if sweep.at.mono < BEGIN + 210]
    assert [view.pattern for view in gpus(job, sweeps)] == ["idle", "spinning", "spinning", "spinning"]
    views = tasks(job, sweeps)
    assert (views[0].io_bytes_per_second or 0.0) > 1e8
    assert all((view.io_bytes_per_second or 0.0) < 1e5 for view in views[1:])
    beats = [sweep.rows for sweep in sweeps if sweep.source == "heartbeats"]
    assert {values["rank_phase"] for values in beats[-1].values()} == {"checkpoint"}


def test_slow_loaders_leave_gpus_a_sawtooth_and_work_hard() -> None:
    job = Training(seed=3, ranks=2, step=2.0, plan=(*WARM, Part("starved", 400)))
    sweeps = list(job.sweeps())
    assert {view.pattern for view in gpus(job, sweeps)} == {"sawtooth"}
    assert all((view.children_cpu or 0.0) > 2.0 for view in tasks(job, sweeps))


def test_a_slow_rank_holds_up_all_and_is_the_busiest() -> None:
    job, sweeps = live(*WARM, Part("steps", 200, rank=1, factor=3.0))
    views = [view.activity or 0.0 for view in gpus(job, sweeps)]
    assert views[1] > 0.8
    assert all(view < 0.55 for number, view in enumerate(views) if number != 1)
    assert len({member.step for member in job.members}) == 1


def test_a_restart_brings_other_processes_that_go_on_from_the_checkpoint() -> None:
    _, sweeps = live(*WARM, Part("checkpoint", 20, how="all"), Part("steps", 30), Part("restart", 60))
    first = next(sweep for sweep in sweeps if sweep.source == "heartbeats").rows[rank(JOB, 0)]
    last = [sweep for sweep in sweeps if sweep.source == "heartbeats"][-1].rows[rank(JOB, 0)]
    assert (first["rank_restart"], last["rank_restart"]) == (0, 1)
    assert first["rank_pid"] != last["rank_pid"]
    assert last["rank_step"] == last["rank_saved_step"]


def test_flight_recorders_tell_who_is_in_another_collective() -> None:
    job = Training(seed=1, ranks=4, flight=True, plan=(*WARM, Part("mismatch", 90, rank=3)))
    dumps = [sweep for sweep in job.sweeps() if sweep.source == "flight_recorder"]
    told = [dumps[-1].rows[rank(JOB, number)]["flight_enqueued"] for number in range(4)]
    assert [value == max(told) for value in told] == [True, True, True, False]  # type: ignore[type-var]
