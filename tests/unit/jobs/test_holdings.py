"""Records of memory taken and given back: what is a release, and what only nobody could see."""

from hypothesis import given
from hypothesis import strategies as st

from gpuguard.jobs.holdings import KEPT, MOST, Holdings
from gpuguard.model.ids import BootId, SubjectId
from gpuguard.model.readings import Row, Value, Values
from tests.support.core import BOOT, instant

GPU, PROCESS = SubjectId("gpu:0000:1b:00.0"), SubjectId("process:0000:1b:00.0/60")
GIB = 1 << 30


class Course:
    """A node whose memory is looked at as time goes by."""

    def __init__(self) -> None:
        self.holdings = Holdings()

    def look(
        self, mono: float, memory: dict[SubjectId, Value], *, count: int | None = 1, name: str | None = "python3",
        boot: BootId = BOOT,
    ) -> dict[SubjectId, Values]:  # fmt: skip
        rows: dict[SubjectId, Values] = {GPU: {"process_count": count}}
        rows |= {who: {"process_memory_bytes": held, "process_name": name} for who, held in memory.items()}
        at = instant(mono, boot)
        told = {who: Row(subject=who, at=at, source="nvml", values=values) for who, values in rows.items()}
        self.holdings = self.holdings.seen(told, at)
        return dict(self.holdings.values(at))


def test_what_is_held_and_for_how_long_and_the_most_of_it() -> None:
    course = Course()
    assert course.look(10.0, {PROCESS: GIB})[PROCESS] == {"process_held_seconds": 0.0, "process_peak_bytes": GIB}
    course.look(20.0, {PROCESS: 5 * GIB})
    assert course.look(40.0, {PROCESS: 2 * GIB})[PROCESS] == {
        "process_held_seconds": 30.0, "process_peak_bytes": 5 * GIB,
    }  # fmt: skip


def test_given_back_when_its_gpu_names_it_no_more() -> None:
    course = Course()
    course.look(10.0, {PROCESS: GIB})
    course.look(70.0, {PROCESS: GIB})
    assert course.look(80.0, {}, count=0)[PROCESS]["process_released_seconds"] == 0.0
    assert course.look(100.0, {}, count=0)[PROCESS] == {
        "process_held_seconds": 60.0, "process_peak_bytes": GIB, "process_released_seconds": 20.0,
    }  # fmt: skip


def test_given_back_by_one_that_lives_on() -> None:
    course = Course()
    course.look(10.0, {PROCESS: GIB})
    assert course.look(20.0, {PROCESS: 0})[PROCESS]["process_released_seconds"] == 0.0


def test_kept_for_an_hour_and_then_forgotten() -> None:
    course = Course()
    course.look(10.0, {PROCESS: GIB})
    course.look(20.0, {}, count=0)
    assert PROCESS in course.look(20.0 + KEPT, {}, count=0)
    assert course.look(20.1 + KEPT, {}, count=0) == {}


def test_that_nobody_could_ask_is_no_release() -> None:
    course = Course()
    course.look(10.0, {PROCESS: GIB})
    assert course.look(20.0, {}, count=None)[PROCESS] == {"process_held_seconds": 0.0, "process_peak_bytes": GIB}
    assert course.look(30.0, {PROCESS: None})[PROCESS]["process_held_seconds"] == 20.0
    assert course.look(40.0, {PROCESS: GIB}) == {PROCESS: {"process_held_seconds": 30.0, "process_peak_bytes": GIB}}


def test_another_gpu_that_answers_says_nothing_of_this_one() -> None:
    course = Course()
    other = SubjectId("process:0000:43:00.0/60")
    course.look(10.0, {other: GIB})
    assert "process_released_seconds" not in course.look(20.0, {})[other]


def test_one_that_was_not_seen_for_an_hour_is_forgotten_unreleased() -> None:
    course = Course()
    course.look(10.0, {PROCESS: GIB})
    assert course.look(11.0 + KEPT, {}, count=None) == {}


def test_after_a_reboot_there_are_other_processes() -> None:
    course = Course()
    course.look(10.0, {PROCESS: GIB})
    assert course.look(5.0, {}, boot=BootId("another")) == {}


def test_the_same_number_with_another_name_is_another_process() -> None:
    course = Course()
    course.look(10.0, {PROCESS: 9 * GIB})
    course.look(15.0, {PROCESS: 9 * GIB}, name=None)
    assert course.look(20.0, {PROCESS: GIB}, name="jupyter")[PROCESS] == {
        "process_held_seconds": 0.0, "process_peak_bytes": GIB,
    }  # fmt: skip


def test_one_that_comes_back_is_a_new_record() -> None:
    course = Course()
    course.look(10.0, {PROCESS: 9 * GIB})
    course.look(20.0, {}, count=0)
    assert course.look(30.0, {PROCESS: GIB})[PROCESS] == {"process_held_seconds": 0.0, "process_peak_bytes": GIB}


def test_without_a_name_at_first_the_name_is_learned() -> None:
    course = Course()
    course.look(10.0, {PROCESS: GIB}, name=None)
    course.look(20.0, {PROCESS: GIB}, name="python3")
    assert course.look(30.0, {PROCESS: GIB}, name="jupyter")[PROCESS]["process_held_seconds"] == 0.0


def test_what_holds_nothing_or_nobody_knows_what_has_no_record() -> None:
    course = Course()
    assert course.look(10.0, {PROCESS: 0}) == {}
    assert course.look(20.0, {PROCESS: None}) == {}


def test_no_more_than_the_limit_and_what_is_over_goes_first() -> None:
    course = Course()
    many = {SubjectId(f"process:0000:1b:00.0/{pid}"): GIB for pid in range(100, 100 + MOST)}
    course.look(10.0, {PROCESS: GIB})
    course.look(20.0, {PROCESS: GIB, **dict(list(many.items())[:-1])})
    first = SubjectId("process:0000:1b:00.0/100")
    course.look(30.0, {PROCESS: GIB, **dict(list(many.items())[1:-1])})
    told = course.look(40.0, {PROCESS: GIB, **dict(list(many.items())[1:])})
    assert len(told) == MOST
    assert first not in told
    assert PROCESS in told


COUNTS = st.sampled_from([None, 0, 1, 3])
MEMORY = st.sampled_from([None, 0, GIB, 2 * GIB, "absent"])


@given(st.lists(st.tuples(COUNTS, MEMORY, st.sampled_from(["a", "b", None])), max_size=30))
def test_nothing_is_released_without_evidence(looks: list[tuple[int | None, object, str | None]]) -> None:
    course = Course()
    released = False
    for n, (count, held, name) in enumerate(looks):
        memory: dict[SubjectId, Value] = {} if held == "absent" else {PROCESS: held}  # type: ignore[dict-item]
        told = course.look(10.0 * n, memory, count=count, name=name)
        evidence = held == 0 or (held == "absent" and count is not None)
        now = "process_released_seconds" in told.get(PROCESS, {})
        assert not (now and not released) or evidence
        assert not (isinstance(held, int) and held > 0) or not now
        released = now
