"""Dumps are found by rank, read once they rest, by a process that may fail in any way."""

import os
import pwd
import stat
from collections import deque
from pathlib import Path

import msgspec
import pytest

from gpuguard.child.process import Ended
from gpuguard.errors import ReadFailed
from gpuguard.model.events import Batch, Sweep
from gpuguard.model.ids import NODE, EventId, SubjectId
from gpuguard.model.readings import Values
from gpuguard.ports import Onlooker
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.flight_recorder import QUANTITIES, FlightRecorder, Settings, build
from gpuguard.sources.flight_recorder import child as program
from gpuguard.sources.flight_recorder.protocol import FILES, Answer, File, Read, Refused
from tests.support.flights import flight
from tests.support.trees import process

RANK = SubjectId("rank:slurm/8123/3")
ME = os.getuid()


class Reader:
    """A child that answers what it is told to: an answer, None for silence, or its end."""

    def __init__(self, answers: deque[Answer | bytes | Ended | None]) -> None:
        self.answers, self.asked, self.abandoned, self.stopped = answers, [], 0, 0
        self.stays = False

    def send(self, message: bytes) -> None:
        self.asked.append(FILES.decode(message))

    def receive(self, timeout: float, *wakes: int) -> bytes | None:
        answer = self.answers.popleft()
        if isinstance(answer, Ended):
            raise answer
        return answer if answer is None or isinstance(answer, bytes) else msgspec.json.encode(answer)

    def gone(self) -> bool:
        return not self.stays

    def stop(self, within: float) -> bool:
        self.stopped += 1
        return not self.stays

    def abandon(self) -> None:
        self.abandoned += 1


class Node:
    """A machine with one rank of a job, whose dump may come."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.root, self.clock = root, ManualClock(mono=10_000.0)
        self.reader = Reader(deque())
        self.source = FlightRecorder(
            Settings(**settings), root, self.clock, start=lambda: self.reader,  # type: ignore[arg-type]
        )  # fmt: skip

    def tell(self, subject: SubjectId = RANK, **values: object) -> None:
        row: Values = {"rank_number": 3, "rank_uid": ME, **values}  # type: ignore[dict-item]
        at = self.clock.now()
        self.source.onlook(Sweep(
            id=EventId("x"), at=at, source="heartbeats", rate="fast", valid_for=30.0, rows={subject: row},
        ))  # fmt: skip

    def put(self, path: str, text: str = "dump", *, age: float = 0.0) -> Path:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        when = (self.clock.now().utc or 0.0) - age
        os.utime(file, (when, when))
        return file

    def look(self) -> dict[SubjectId, Values]:
        self.clock.advance(10.0)
        return self.source.look(self.clock.now())

    def row(self) -> Values:
        """What the second of two looks says of the rank."""
        self.look()
        return self.look()[RANK]


def test_without_ranks_and_without_dumps_nothing_is_said(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.look() == {}
    node.tell()
    assert node.look() == node.look() == {}
    assert not node.reader.asked


def test_a_dump_that_rests_is_read_once(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tell()
    file = node.put("tmp/nccl_trace_rank_3")
    assert node.look() == {}
    node.reader.answers.append(Read(summary=flight(10, 8)))
    rows = node.look()
    assert rows[NODE] == {"flight_dumps_failed_total": 0}
    row = rows[RANK]
    assert row["flight_enqueued"] == 10
    assert row["flight_completed"] == 8
    assert row["flight_waits_in"] == "all_reduce number 9 of group default_pg"
    assert row["flight_waits_state"] == "started"
    assert row["flight_age_seconds"] == 20.0
    assert row["flight_problem"] == ""
    assert msgspec.json.decode(str(row["flight_groups"]))["groups"][0]["enqueued"] == 10
    assert node.look()[RANK]["flight_age_seconds"] == 30.0
    assert [asked.path for asked in node.reader.asked] == [str(file)]
    declared = {quantity.name for quantity in QUANTITIES}
    assert row.keys() | rows[NODE].keys() <= declared


def test_a_dump_that_still_grows_waits_and_one_that_changed_is_read_anew(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tell()
    node.put("tmp/nccl_trace_rank_3")
    assert node.look() == {}
    node.put("tmp/nccl_trace_rank_3", "dump and more")
    assert node.look() == {}
    node.reader.answers.append(Read(summary=flight(10, 8)))
    assert node.look()[RANK]["flight_enqueued"] == 10
    node.put("tmp/nccl_trace_rank_3", "another dump")
    assert node.look() == {}, "what an older one said stands no longer"
    node.reader.answers.append(Read(summary=flight(12)))
    row = node.look()[RANK]
    assert (row["flight_enqueued"], row["flight_waits_in"], row["flight_waits_state"]) == (12, "", "")


def test_one_that_is_gone_says_nothing_any_more(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tell()
    file = node.put("tmp/nccl_trace_rank_3")
    node.reader.answers.append(Read(summary=flight(10, 8)))
    assert node.row()["flight_enqueued"] == 10
    file.unlink()
    assert node.look() == {}


def test_the_rank_says_itself_where_it_writes(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tell(rank_flight="/mnt/run7/fr_")
    node.put("tmp/nccl_trace_rank_3")
    file = node.put("mnt/run7/fr_3")
    node.reader.answers.append(Read(summary=flight(10, 8)))
    node.row()
    assert node.reader.asked[0].path == str(file)


@pytest.mark.parametrize("prefix", ["relative_", "/a\nb", "/" + "x" * 2000, ""])
def test_a_prefix_that_is_no_path_is_not_followed(tmp_path: Path, prefix: str) -> None:
    node = Node(tmp_path)
    node.tell(rank_flight=prefix)
    node.put("tmp/nccl_trace_rank_3")
    node.reader.answers.append(Read(summary=flight(10, 8)))
    assert node.row()["flight_enqueued"] == 10, "the usual places are looked at"


def test_the_home_of_the_user(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tell()
    home = pwd.getpwuid(os.getuid()).pw_dir.lstrip("/")
    node.put(f"{home}/.cache/torch/comm_lib_trace_rank_3")
    node.reader.answers.append(Read(summary=flight(10, 8)))
    assert node.row()["flight_enqueued"] == 10


def test_a_tmp_of_its_own_is_reached_through_the_process(tmp_path: Path) -> None:
    node = Node(tmp_path)
    process(tmp_path, 77, "python", started=0)
    node.tell(rank_pid=77)
    file = node.put("proc/77/root/tmp/nccl_trace_rank_3")
    node.reader.answers.append(Read(summary=flight(10, 8)))
    assert node.row()["flight_enqueued"] == 10
    assert node.reader.asked[0].path == str(file)


def test_a_dump_of_an_earlier_process_is_none_of_this_one(tmp_path: Path) -> None:
    node = Node(tmp_path)
    ticks = os.sysconf("SC_CLK_TCK")
    process(tmp_path, 77, "python", started=9_000 * ticks)  # a thousand seconds ago
    node.tell(rank_pid=77)
    file = node.put("tmp/nccl_trace_rank_3", age=1_100.0)
    assert node.look() == node.look() == {}
    when = (node.clock.now().utc or 0.0) - 900.0
    os.utime(file, (when, when))
    node.reader.answers.append(Read(summary=flight(10, 8)))
    assert node.row()["flight_enqueued"] == 10
    # The next start of the job, whose process began later.
    process(tmp_path, 78, "python", started=10_020 * ticks)
    node.tell(rank_pid=78)
    assert node.look() == node.look() == {}


def test_without_its_process_only_what_came_since_it_was_told_of_counts(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tell()
    node.put("tmp/nccl_trace_rank_3", age=60.0)
    assert node.look() == node.look() == {}


def test_other_users_files_links_pipes_and_folders_are_not_read(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tell(rank_uid=ME + 1)
    file = node.put("tmp/nccl_trace_rank_3")
    assert node.look() == node.look() == {}, "another user's"
    node.tell()
    file.rename(file.with_name("real"))
    file.symlink_to("real")
    assert node.look() == node.look() == {}, "a link"
    file.unlink()
    os.mkfifo(file)
    assert node.look() == node.look() == {}, "a pipe"
    file.unlink()
    file.mkdir()
    assert node.look() == node.look() == {}, "a folder"
    assert not node.reader.asked


def test_whose_rank_is_not_known_has_no_dump(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tell(rank_uid=None)
    node.put("tmp/nccl_trace_rank_3")
    assert node.look() == node.look() == {}


def test_a_file_that_two_ranks_may_have_written_is_nobodys(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tell()
    node.tell(SubjectId("rank:slurm/9000/3"))
    node.put("tmp/nccl_trace_rank_3")
    assert node.look() == node.look() == {}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Refused(why="instruction GLOBAL"), "instruction GLOBAL"), (None, "not read within 10 s"),
        (Ended("the child was ended by SIGKILL"), "failed: the child was ended by SIGKILL"),
        (b"?", "does not keep to its protocol"), (b'{"type":"read","summary":3}', "does not keep to its protocol"),
    ],
)  # fmt: skip
def test_whatever_becomes_of_the_child_is_told_and_counted(
    tmp_path: Path, answer: Answer | bytes | Ended | None, words: str
) -> None:
    node = Node(tmp_path)
    node.tell()
    node.put("tmp/nccl_trace_rank_3")
    node.reader.answers.append(answer)
    row = node.row()
    assert words in str(row["flight_problem"])
    unknown = {name: value for name, value in row.items() if name not in ("flight_problem", "flight_age_seconds")}
    assert set(unknown.values()) == {None}, "unknown is not nothing"
    rows = node.look()
    assert rows[NODE] == {"flight_dumps_failed_total": 1}
    assert len(node.reader.asked) == 1, "the same file is not tried again"
    assert node.reader.abandoned == (answer is None)


def test_children_that_cannot_be_ended_do_not_pile_up(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.reader.stays = True
    node.tell()
    for turn in range(3):
        node.put("tmp/nccl_trace_rank_3", "x" * (turn + 1))
        node.reader.answers.append(None)
        node.row()
    assert len(node.reader.asked) == 2
    assert "cannot be ended" in str(node.look()[RANK]["flight_problem"])


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    node = Node(tmp_path, largest=2**20)
    node.tell()
    node.put("tmp/nccl_trace_rank_3", "x" * (2**20 + 1))
    assert "largest" in str(node.row()["flight_problem"])
    assert not node.reader.asked


def test_ranks_are_forgotten_and_their_number_is_bounded(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for number in range(1100):
        node.tell(SubjectId(f"rank:slurm/1/{number}"), rank_number=number)
    node.tell(SubjectId("gpu:0000:1b:00.0"))
    assert len(node.source._ranks) == 1024
    node.clock.advance(301.0)
    assert node.look() == {}
    assert not node.source._ranks


def test_it_is_an_onlooker_and_stops(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert isinstance(node.source, Onlooker)
    node.source.stop()
    said: list[Batch] = []
    node.source.run(said.append, None)
    assert said == []


@pytest.mark.parametrize(
    "settings", [{"every": 0.5}, {"every": 61.0}, {"deadline": 0.0}, {"read_deadline": 21.0}, {"memory": 5},
                 {"prefixes": ("tmp/x",)}],
)  # fmt: skip
def test_settings_that_cannot_be(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be|begins with"):
        Settings(**settings)  # type: ignore[arg-type]


def test_the_real_child_reads_a_real_dump_and_refuses_others(tmp_path: Path) -> None:
    """Three dumps, each read by a process of its own: one that libtorch wrote, one that would run a command, and one
    that takes more memory than it may."""
    fixtures = Path(__file__).resolve().parents[4] / "fixtures" / "sources" / "flight_recorder"
    clock = ManualClock(mono=10_000.0)
    source = build(Settings(memory=64 * 2**20), tmp_path, clock)  # type: ignore[arg-type]
    mark = tmp_path / "mark"
    command = f"touch {mark}".encode()
    texts = {
        0: (fixtures / "rank_0").read_bytes(),
        1: b"\x80\x02cos\nsystem\nX" + len(command).to_bytes(4, "little") + command + b"\x85R.",
        2: b"\x80\x02(" + b"]" * 1_500_000,
    }  # fmt: skip
    (tmp_path / "tmp").mkdir()
    rows: dict[SubjectId, Values] = {}
    now = clock.now()
    for number, text in texts.items():
        file = tmp_path / f"tmp/nccl_trace_rank_{number}"
        file.write_bytes(text)
        os.utime(file, (now.utc or 0.0, now.utc or 0.0))
        rows[SubjectId(f"rank:slurm/1/{number}")] = {"rank_number": number, "rank_uid": ME}
    source.onlook(Sweep(id=EventId("x"), at=now, source="h", rate="fast", valid_for=30.0, rows=rows))
    assert source.look(clock.advance(10.0)) == {}
    found = source.look(clock.advance(10.0))
    assert found[SubjectId("rank:slurm/1/0")]["flight_enqueued"] == 5
    assert "instruction GLOBAL" in str(found[SubjectId("rank:slurm/1/1")]["flight_problem"])
    assert "memory" in str(found[SubjectId("rank:slurm/1/2")]["flight_problem"])
    assert found[NODE] == {"flight_dumps_failed_total": 2}
    assert not mark.exists()


def test_the_child_opens_the_very_file_that_was_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(b"PK")
    looked = program.identify(str(path))
    assert program.answer(looked) == Refused(why="neither a pickle nor JSON; is that a dump of the flight recorder?")
    path.write_bytes(b"other")
    assert program.answer(looked) == Refused(why="it changed since it was looked at")
    path.unlink()
    path.symlink_to("/dev/zero")
    answer = program.answer(looked)
    assert isinstance(answer, Refused)
    path.unlink()
    answer = program.answer(looked)
    assert isinstance(answer, Refused)
    assert "No such file" in answer.why


def test_a_file_without_memory_for_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "dump"
    path.write_bytes(b"x")

    def full(stream: object) -> None:
        raise MemoryError

    monkeypatch.setattr(program, "read_dump", full)
    answer = program.answer(program.identify(str(path)))
    assert isinstance(answer, Refused)
    assert "memory allows" in answer.why


def test_only_regular_files_are_identified(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    with pytest.raises(ReadFailed, match="no regular file"):
        program.identify(str(tmp_path / "pipe"))
    file = File(path="/tmp/a", device=1, inode=2, owner=3, size=4, modified=5)
    assert file.is_same(msgspec.structs.replace(file, path="/tmp/b"))
    assert not file.is_same(msgspec.structs.replace(file, size=5))
    assert not file.is_same(None)
