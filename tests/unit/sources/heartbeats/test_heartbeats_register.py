"""Whose word about which rank is believed, what is refused, and what stays known."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpuguard.model.ids import NODE, JobId
from gpuguard.model.jobs import Owner
from gpuguard.model.readings import Values
from gpuguard.sources.heartbeats import QUANTITIES
from gpuguard.sources.heartbeats.allowance import Allowance
from gpuguard.sources.heartbeats.message import REASONS
from gpuguard.sources.heartbeats.register import Limits, Register
from gpuguard.sources.heartbeats.senders import Senders
from tests.support.beats import came, message, page, sender, state

NOW = 1000.0


def owner(cgroup: str, variables: Mapping[str, str]) -> Owner:
    """The cgroup's last part is the job."""
    job = cgroup.strip().partition("::/")[2]
    return Owner(job=JobId(job) if "/" in job else None)


class Node:
    """A node with processes that beat."""

    def __init__(self, root: Path, **limits: float) -> None:
        self.root, self.now = root, NOW
        self.register = Register(Senders(root, owner, asleep=lambda: 0.0, hertz=100), Limits(**limits))  # type: ignore[arg-type]

    def starts(self, pid: int, job: str = "slurm/9", **more: object) -> None:
        sender(self.root, pid, cgroup=f"0::/{job}", **more)  # type: ignore[arg-type]

    def ends(self, pid: int) -> None:
        (self.root / "proc" / str(pid) / "stat").unlink()

    def hears(self, data: bytes, pid: int = 50, uid: int = 1000, **more: object) -> None:
        self.register.hear([came(data, pid, uid, **more)], self.now)

    def settles(self) -> dict[str, Values]:
        """Twice: who told something since the look before is not asked whether it lives."""
        self.looks(0.0)
        return self.looks(1.0)

    def looks(self, after: float = 1.0) -> dict[str, Values]:
        self.now += after
        self.register.look(self.now)
        return {name: row for name, row in self.register.rows(self.now).items() if name != NODE}

    def refused(self) -> dict[str, int]:
        return {reason: count for reason, count in self.register.refused.items() if count}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path)
    yield one
    for held in one.register._ranks.values():
        held.drop()


def test_a_rank_as_it_told_itself(node: Node) -> None:
    node.starts(50)
    node.hears(
        message(
            3, n=1, job="llama", world=64, restart=2, host="node7", pid=7, step=120, phase="checkpoint", since=NOW - 4,
            at=NOW - 2, saved=100, saved_at=NOW - 60, blocked=1.5, holds="model optimizer", loss=2.25, flat=7,
            preempt=1, devices="0,1", flight="/tmp/nccl_trace_rank_",
        )
    )  # fmt: skip
    assert node.looks() == {
        "rank:slurm/9/3": {
            "rank_job": "slurm/9", "rank_number": 3, "rank_world": 64, "rank_restart": 2, "rank_pid": 50,
            "rank_uid": 1000, "rank_host": "node7", "rank_via": "datagram", "rank_step": 120,
            "rank_phase": "checkpoint", "rank_phase_seconds": 5.0, "rank_progress_seconds": 3.0,
            "rank_saved_step": 100, "rank_saved_seconds": 61.0, "rank_save_blocked_seconds": 1.5,
            "rank_save_holds": "model optimizer", "rank_loss": 2.25, "rank_loss_nan": 0,
            "rank_loss_flat_steps": 7, "rank_done": 0,
            "rank_preempt": 1, "rank_devices": "0,1", "rank_flight": "/tmp/nccl_trace_rank_", "rank_gone": 0,
        }
    }  # fmt: skip


def test_what_was_not_told_is_absent(node: Node) -> None:
    node.starts(50)
    node.hears(message(0))
    assert node.looks()["rank:slurm/9/0"] == {
        "rank_job": "slurm/9", "rank_number": 0, "rank_pid": 50, "rank_uid": 1000, "rank_via": "datagram",
        "rank_progress_seconds": 1.0, "rank_done": 0, "rank_gone": 0,
    }  # fmt: skip


def test_every_column_is_declared(node: Node) -> None:
    node.starts(50)
    node.hears(
        message(0, n=1, step=1, phase="x", since=1.0 + NOW - 5, saved=1, saved_at=NOW, loss="nan", via="library")
    )
    node.looks()
    columns = {column for row in node.register.rows(node.now).values() for column in row}
    assert columns <= {quantity.name for quantity in QUANTITIES}


def test_a_loss_that_is_no_number(node: Node) -> None:
    node.starts(50)
    node.hears(message(0, loss="NaN", via="library"))
    row = node.looks()["rank:slurm/9/0"]
    assert (row["rank_loss_nan"], "rank_loss" in row, row["rank_via"]) == (1, False, "library")


@pytest.mark.parametrize(
    ("own", "claim", "job"),
    [
        ("slurm/9", None, "slurm/9"), ("slurm/9", "slurm/9", "slurm/9"), ("slurm/9", "llama", "slurm/9"),
        ("slurm/9", "team/llama", "slurm/9"), ("slurm/9", "slurm/10", None), ("slurm/9", "kubernetes/9", None),
        ("slurm/9", "slurm/", None), ("kubernetes/a-b", "slurm/9", None), ("docker/abc", "docker/abd", None),
        ("gpuguard/4", "gpuguard/4", "gpuguard/4"),
        ("systemd/train.service", None, "systemd/train.service"),
        ("systemd/train.service", "llama", "claimed/1000-llama"), ("", "slurm/9", "claimed/1000-slurm_9"),
        ("", "../../x y", "claimed/1000-.._.._x_y"), ("", None, "claimed/1000-50"),
    ],
)  # fmt: skip
def test_whose_job_it_is(node: Node, own: str, claim: str | None, job: str | None) -> None:
    node.starts(50, own)
    node.hears(message(0, **({"job": claim} if claim is not None else {})))
    assert list(node.looks()) == ([f"rank:{job}/0"] if job else [])
    assert node.refused() == ({} if job else {"foreign_job": 1})


def test_ranks_of_one_launcher_are_one_job(node: Node) -> None:
    """A launcher that gives each rank a session of its own is what they have in common."""
    for number, pid in enumerate((61, 62)):
        node.starts(pid, "", parent=60, group=pid, session=pid)
        node.hears(message(number), pid)
    assert list(node.looks()) == ["rank:claimed/1000-60/0", "rank:claimed/1000-60/1"]


@pytest.mark.parametrize(
    ("data", "more", "why"),
    [
        (message(0, pad="x" * 500), {}, "oversized"), (message(0), {"cut": True}, "oversized"),
        (b"nonsense", {}, "not_understood"), (b'{"v":7,"rank":0}', {}, "version"),
        (message(0), {"pid": 51}, "unseen"), (message(0), {"uid": 1001}, "unseen"), (message(0), {"pid": 0}, "unseen"),
        (message(0, at=NOW + 2), {}, "future"), (message(0, since=NOW + 2), {}, "future"),
        (message(0, saved_at=NOW + 2), {}, "future"), (message(0, at=5.0), {}, "before_start"),
    ],
)  # fmt: skip
def test_what_is_refused_is_counted_and_disturbs_nobody(
    node: Node, data: bytes, more: dict[str, int], why: str
) -> None:
    node.starts(50)
    node.starts(60, "slurm/10")
    node.hears(message(0, step=1), 60)
    before = node.looks(0.0)
    node.hears(data, **more)
    assert node.refused() == {why: 1}
    assert node.looks(0.0) == before
    row = node.register.rows(node.now)[NODE]
    assert row["heartbeats_total"] == 2
    assert row["heartbeat_ranks"] == 1
    counts = row["heartbeats_refused_total"]
    assert isinstance(counts, tuple)
    assert dict(zip(counts[::2], counts[1::2], strict=True)) == {reason: int(reason == why) for reason in REASONS}


def test_an_older_message_is_not_believed(node: Node) -> None:
    node.starts(50)
    node.hears(message(0, n=5, step=50))
    node.hears(message(0, n=5, step=1))
    node.hears(message(0, n=4, step=2))
    assert node.looks()["rank:slurm/9/0"]["rank_step"] == 50
    assert node.refused() == {"replayed": 2}
    node.hears(message(0, n=6, step=60))
    assert node.looks()["rank:slurm/9/0"]["rank_step"] == 60


def test_of_many_messages_the_newest_counts(node: Node) -> None:
    node.starts(50)
    node.register.hear([came(message(n % 2, n=n, step=n)) for n in range(100)], node.now)
    rows = node.looks()
    assert {name: row["rank_step"] for name, row in rows.items()} == {"rank:slurm/9/0": 98, "rank:slurm/9/1": 99}
    assert (node.register.heard, node.refused()) == (100, {})


def test_nobody_else_s_user_takes_a_living_rank(node: Node) -> None:
    node.starts(50)
    node.hears(message(0, n=9, step=9))
    node.starts(51, uid=1001, ticks=2000)
    node.hears(message(0, n=10, step=666), 51, 1001)
    assert node.looks()["rank:slurm/9/0"]["rank_step"] == 9
    assert node.refused() == {"foreign_rank": 1}
    node.ends(50)
    node.hears(message(0, n=1, step=10), 51, 1001)
    row = node.looks()["rank:slurm/9/0"]
    assert (row["rank_uid"], row["rank_step"]) == (1001, 10)


def test_a_restart_takes_over_and_counts_anew(node: Node) -> None:
    node.starts(50, ticks=1000)
    node.hears(message(0, n=900, step=900, restart=0))
    node.starts(52, ticks=3000)
    node.hears(message(0, n=1, step=850, restart=1), 52)
    row = node.looks()["rank:slurm/9/0"]
    assert (row["rank_pid"], row["rank_step"], row["rank_restart"]) == (52, 850, 1)
    # The one before still lives, and speaks: it is no longer this rank.
    node.hears(message(0, n=901, step=901), 50)
    assert node.looks()["rank:slurm/9/0"]["rank_step"] == 850
    assert node.refused() == {"superseded": 1}


def test_the_same_pid_may_be_another_process(node: Node) -> None:
    node.starts(50, ticks=1000)
    node.hears(message(0, n=900, step=900))
    node.ends(50)
    node.settles()
    node.starts(50, ticks=5000)
    node.hears(message(0, n=1, step=1))
    row = node.looks()["rank:slurm/9/0"]
    assert (row["rank_step"], row["rank_gone"]) == (1, 0)


def test_who_has_ended_lingers_and_is_forgotten(node: Node) -> None:
    node.starts(50)
    node.hears(message(0, n=1, step=5, at=NOW))
    assert node.looks()["rank:slurm/9/0"]["rank_gone"] == 0
    node.ends(50)
    row = node.looks()["rank:slurm/9/0"]
    assert (row["rank_gone"], row["rank_step"], row["rank_progress_seconds"]) == (1, 5, 2.0)
    assert (node.register.living, node.register.lingering, node.register.by_datagram) == (0, True, False)
    assert node.looks(599.0)
    assert not node.looks(1.0)
    assert not node.register.lingering


def test_a_zombie_has_ended(node: Node) -> None:
    node.starts(50)
    node.hears(message(0))
    node.starts(50, state="Z")
    assert node.settles()["rank:slurm/9/0"]["rank_gone"] == 1


def test_a_page_that_another_process_goes_on_writing_proves_nothing_for_long(node: Node) -> None:
    node.starts(50)
    fd = page(state(1, at=NOW, step=1))
    writer = os.dup(fd)
    node.hears(message(0, n=1, at=NOW), page=fd)
    node.looks()
    node.ends(50)
    gone = []
    for n in range(2, 9):
        os.pwrite(writer, state(n, at=node.now, step=n), 0)
        gone.append(node.looks()["rank:slurm/9/0"]["rank_gone"])
    assert gone == [0, 0, 0, 0, 1, 1, 1]
    os.close(writer)


def test_the_last_word_of_a_process_that_has_ended_counts(node: Node) -> None:
    node.starts(50)
    node.hears(message(0, n=1, step=5))
    node.ends(50)
    node.looks()
    node.looks()
    node.hears(message(0, n=2, step=6, done=True))
    row = node.looks()["rank:slurm/9/0"]
    assert (row["rank_step"], row["rank_done"], row["rank_gone"]) == (6, 1, 1)


def test_a_page_is_read_until_its_process_has_ended(node: Node) -> None:
    node.starts(50)
    fd = page(state(1, at=NOW, step=1))
    writer = os.dup(fd)
    node.hears(message(0, n=1, step=0, world=2, at=NOW - 5), page=fd)
    row = node.looks()["rank:slurm/9/0"]
    assert (row["rank_step"], row["rank_world"], row["rank_via"], row["rank_progress_seconds"]) == (
        1,
        2,
        "library",
        1.0,
    )
    assert not node.register.by_datagram
    os.pwrite(writer, state(7, at=NOW + 1, step=7, done=True), 0)
    node.ends(50)
    row = node.settles()["rank:slurm/9/0"]
    assert (row["rank_step"], row["rank_done"], row["rank_gone"], row["rank_via"]) == (7, 1, 1, "library")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    os.close(writer)


def test_a_page_announced_again_is_the_same(node: Node) -> None:
    node.starts(50)
    fd = page(state(1, at=NOW, step=1))
    again, other = os.dup(fd), page(state(1, at=NOW, step=4))
    node.hears(message(0, n=1, at=NOW), page=fd)
    node.hears(message(0, n=2, at=NOW), page=again)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(again)
    node.hears(message(0, n=3, at=NOW), page=other)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert node.looks()["rank:slurm/9/0"]["rank_step"] == 4


def test_of_an_announcement_and_what_came_after_it_the_page_is_kept(node: Node) -> None:
    node.starts(50)
    fd = page(state(1, at=NOW, step=1))
    node.register.hear([came(message(0, n=1, at=NOW), page=fd), came(message(0, n=2, at=NOW))], node.now)
    assert node.looks()["rank:slurm/9/0"]["rank_step"] == 1


def test_a_page_from_the_future_changes_nothing(node: Node) -> None:
    node.starts(50)
    fd = page(state(1, at=NOW, step=1))
    writer = os.dup(fd)
    node.hears(message(0, n=1, at=NOW), page=fd)
    node.looks()
    os.pwrite(writer, state(2, at=NOW + 500, step=2), 0)
    assert node.looks()["rank:slurm/9/0"]["rank_step"] == 1
    assert node.refused() == {"future": 1}
    os.close(writer)


@pytest.mark.parametrize(
    "data", [b"nonsense", message(0, job="slurm/10"), message(0, at=NOW + 9)], ids=["text", "job", "time"]
)
def test_a_page_that_comes_with_what_is_refused_is_closed(node: Node, data: bytes) -> None:
    node.starts(50)
    fd = page()
    node.hears(data, page=fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_more_pages_than_files_may_be_open_are_refused(tmp_path: Path) -> None:
    node = Node(tmp_path, pages=1)
    node.starts(50)
    first, second = page(state(1, at=NOW, step=1)), page(state(1, at=NOW, step=2))
    node.hears(message(0, n=1), page=first)
    node.hears(message(1, n=2, step=9), page=second)
    assert node.refused() == {"too_many": 1}
    assert node.looks()["rank:slurm/9/1"]["rank_step"] == 9
    for held in node.register._ranks.values():
        held.drop()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(second)


def test_a_stray_file_is_counted_and_its_message_heard(node: Node) -> None:
    node.starts(50)
    node.hears(message(0, step=3), stray=True)
    assert node.refused() == {"page": 1}
    assert node.looks()["rank:slurm/9/0"]["rank_step"] == 3


def test_so_many_ranks_of_one_user_and_in_all(tmp_path: Path) -> None:
    node = Node(tmp_path, ranks=3, ranks_of_user=2)
    for pid, uid in ((50, 1000), (60, 1001), (70, 1002)):
        node.starts(pid, f"slurm/{pid}", uid=uid)
    for number in range(3):
        node.hears(message(number, n=number), 50)
    node.hears(message(0), 60, 1001)
    node.hears(message(0), 70, 1002)
    assert list(node.looks()) == ["rank:slurm/50/0", "rank:slurm/50/1", "rank:slurm/60/0"]
    assert node.refused() == {"too_many": 2}
    # What has ended makes room.
    node.ends(60)
    node.looks()
    node.hears(message(0), 70, 1002)
    assert "rank:slurm/70/0" in node.looks()


def test_a_flood_of_one_process_is_not_listened_to(tmp_path: Path) -> None:
    """One process floods, another of its user and one of another user are heard as before; so is it, a little."""
    node = Node(tmp_path, messages_of_process=100.0, messages_of_user=400.0)
    node.starts(50)
    node.starts(51)
    node.starts(60, "slurm/10", uid=1001)
    for second in range(1, 11):
        node.now += 1.0
        flood = [came(message(0, n=1000 * second + n, step=1000 * second + n)) for n in range(1000)]
        others = [came(message(1, n=second, step=second), 51), came(message(0, n=second, step=second), 60, 1001)]
        node.register.hear(flood[:500] + others + flood[500:], node.now)
    rows = node.looks()
    assert (rows["rank:slurm/9/1"]["rank_step"], rows["rank:slurm/10/0"]["rank_step"]) == (10, 10)
    assert rows["rank:slurm/9/0"]["rank_step"] == 10_999
    assert node.refused() == {"flood": 9000}


def test_a_flood_of_many_processes_of_one_user(tmp_path: Path) -> None:
    """Each of them says little; what they may say together, and how many of them are met, is bounded."""
    node = Node(tmp_path, messages_of_user=200.0, meetings_of_user=5.0)
    for pid in range(100, 400):
        node.starts(pid, uid=1000)
        node.hears(message(pid, n=1), pid)
    node.starts(60, "slurm/10", uid=1001)
    node.hears(message(0, step=4), 60, 1001)
    rows = node.looks()
    assert len(rows) == 6
    assert rows["rank:slurm/10/0"]["rank_step"] == 4
    assert node.refused() == {"flood": 295}


def test_an_allowance_comes_back_and_is_forgotten() -> None:
    allowance: Allowance[str] = Allowance(2.0, 4.0, keys=1)
    assert [allowance.take("a", wanted, 0.0) for wanted in (1, 2, 6, 1)] == [1, 2, 1, 0]
    assert [allowance.take("a", 1, 1.0) for _ in range(3)] == [1, 1, 0]
    assert allowance.take("b", 9, 1.25) == 4
    assert allowance.take("c", 1, 1.0) == 1
    allowance.forget(1.25)
    assert list(allowance._left) == ["a"]
    allowance.forget(4.0)
    assert not allowance._left


def test_a_page_that_comes_after_its_process_ended_is_given_back(node: Node) -> None:
    """It would never be read, and never be closed: each would cost the agent an open file for good."""
    node.starts(50)
    node.hears(message(0, n=1, step=1, at=NOW))
    node.ends(50)
    assert node.settles()["rank:slurm/9/0"]["rank_gone"] == 1
    late = page(state(2, at=NOW))
    node.hears(message(0, n=2, step=2, at=NOW), page=late)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(late)
    row = node.looks()["rank:slurm/9/0"]
    assert (row["rank_step"], row["rank_gone"]) == (2, 1), "but its last word counts"


def test_a_file_that_is_no_page_is_counted_also_where_its_message_is_old_already(node: Node) -> None:
    node.starts(50)
    told = [message(0, n=n, at=NOW) for n in (1, 2)]
    node.register.hear([came(told[0], stray=True), came(told[1])], node.now)
    assert node.refused() == {"page": 1}
