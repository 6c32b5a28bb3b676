"""No job becomes eligible before what it waits for, in whatever order jobs end."""

from hypothesis import given
from hypothesis import strategies as st

from gpuguard.scheduler.admission import Admission
from gpuguard.scheduler.capacity import Kind
from gpuguard.scheduler.dependencies import Dependencies
from gpuguard.scheduler.request import Dependency, Job, Relation
from gpuguard.scheduler.settings import Settings

PARENT: st.SearchStrategy[Relation] = st.sampled_from(["afterok", "afterany"])


@st.composite
def graphs(draw: st.DrawFn) -> list[Job]:
    """Jobs that wait for earlier ones, some of them singletons."""
    jobs: list[Job] = []
    for number in range(draw(st.integers(1, 12))):
        after = [
            Dependency(relation=draw(PARENT), name=str(parent))
            for parent in draw(st.lists(st.integers(0, number - 1), max_size=3) if number else st.just([]))
        ]
        name = draw(st.sampled_from(["", "n", "m"]))
        if name and draw(st.booleans()):
            after.append(Dependency(relation="singleton", name=""))
        jobs.append(Job(id=str(number), name=name, after=tuple(after), walltime=1))
    return jobs


class Field:
    """The index, and beside it what it should say, found the slow way."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = {job.id: job for job in jobs}
        self.ended: dict[str, bool] = {}
        self.running: list[str] = []
        self.index = Dependencies()
        self.eligible = [job.id for job in jobs if self.index.add(job, self.ended.get) == "eligible"]
        self.check()

    def may_run(self, job: Job) -> bool:
        for need in job.after:
            if need.relation == "singleton":
                peers = [other.id for other in self.jobs.values() if other.name == job.name and other.id != job.id]
                alive = [other for other in peers if other not in self.ended]
                if any(int(other) < int(job.id) or other in self.running for other in alive):
                    return False
            elif need.name not in self.ended or (need.relation == "afterok" and not self.ended[need.name]):
                return False
        return True

    def start(self, job: str) -> None:
        self.running.append(job)
        self.eligible.remove(job)
        for held in self.index.started(job).held:
            self.eligible.remove(held)
        self.check()

    def end(self, job: str, ok: bool) -> None:
        change = self.index.ended(job, ok)
        self.ended[job] = ok
        for listed in (self.running, self.eligible):
            if job in listed:
                listed.remove(job)
        for child, parent in change.never:
            assert self.ended[parent] is False
            assert Dependency(relation="afterok", name=parent) in self.jobs[child].after
            self.ended[child] = False
        self.eligible.extend(change.eligible)
        assert self.index.ended(job, not ok).eligible == ()
        self.check()

    def check(self) -> None:
        alive = [job for job in self.jobs.values() if job.id not in self.ended and job.id not in self.running]
        assert sorted(self.eligible) == sorted(job.id for job in alive if self.may_run(job))
        for job in alive:
            assert bool(self.index.blocked(job.id)) != self.may_run(job)


@given(graphs(), st.data())
def test_whatever_starts_and_ends_only_those_may_run_whose_parents_have_passed(
    jobs: list[Job], data: st.DataObject
) -> None:
    field = Field(jobs)
    while len(field.ended) < len(jobs):
        alive = [job.id for job in jobs if job.id not in field.ended]
        job = data.draw(st.sampled_from(alive))
        if job in field.eligible and data.draw(st.booleans()):
            field.start(job)
        else:  # who is cancelled has never started, and has no success
            field.end(job, job in field.running and data.draw(st.booleans()))


@given(graphs(), st.data())
def test_the_same_ends_in_another_order_leave_the_same_jobs_eligible(jobs: list[Job], data: st.DataObject) -> None:
    roots = [job.id for job in jobs if not any(need.relation != "singleton" for need in job.after)]
    ends = {
        job: data.draw(st.booleans())
        for job in data.draw(st.lists(st.sampled_from(roots), unique=True) if roots else st.just([]))
    }
    fields = [Field(jobs), Field(jobs)]
    for field, order in zip(fields, (list(ends), data.draw(st.permutations(list(ends)))), strict=True):
        for job in order:
            field.end(job, ends[job])
    assert sorted(fields[0].eligible) == sorted(fields[1].eligible)
    assert fields[0].ended == fields[1].ended


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9)), max_size=14), st.permutations(range(8)))
def test_what_is_admitted_together_can_all_run_and_the_rest_waits_for_itself(
    edges: list[tuple[int, int]], order: list[int]
) -> None:
    jobs = [
        Job(
            id=str(number), walltime=1,
            after=tuple(Dependency(relation="afterok", name=str(above)) for below, above in edges if below == number),
        )
        for number in order
    ]  # fmt: skip
    admitted = Admission(Settings(), (Kind(gpus=8),)).admit(jobs, ())
    passed: set[str] = set()
    for job in admitted.taken:
        assert {need.name for need in job.after} <= passed
        passed.add(job.id)
    # Nobody is refused who could have run: each of the others waits for one that is refused too or does not exist.
    for job, why in admitted.refused:
        assert why
        assert {need.name for need in job.after} - passed
