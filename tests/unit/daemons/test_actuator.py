"""The privileged process: who may ask, what it takes for a request, and when it ends."""

import contextlib
import json
import os
import pwd
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuguard.actuators import gpus
from gpuguard.actuators.delegate import LENGTH, MESSAGE_LIMIT, VERSION, Reply, Request, frame, unframed
from gpuguard.actuators.dry_run import DryRun
from gpuguard.daemons import actuator as daemon
from gpuguard.errors import ConfigInvalid
from gpuguard.model.actions import Action, Outcome
from gpuguard.ports import NodeReport
from gpuguard.runtime import targets
from tests.support.serving import serving
from tests.support.wishes import remedy, wish

ME = frozenset({os.geteuid()})


class Recorder:
    """An actuator that keeps what it was asked for."""

    name = "recorder"

    def __init__(self, report: NodeReport | None = None) -> None:
        self.asked: list[Action] = []
        self.report = report or NodeReport(target="recorder", node="here", state="IDLE", flags=("IDLE",))

    def perform(self, action: Action) -> Outcome:
        """Done."""
        self.asked.append(action)
        return Outcome(result="done", message=f"number {len(self.asked)}")

    def read_state(self) -> NodeReport:
        """The report it was made with."""
        return self.report


def connected(path: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(10)
    link.connect(str(path))
    return link


def reply_on(link: socket.socket) -> Reply:
    buffer = bytearray()
    while (message := unframed(buffer)) is None:
        data = link.recv(MESSAGE_LIMIT)
        assert data, "hung up without an answer"
        buffer += data
    assert len(buffer) == len(frame(message))
    return msgspec.json.decode(message, type=Reply)


def request(action: Action | None) -> bytes:
    return frame(msgspec.json.encode(Request(version=VERSION, perform=action)))


def test_one_connection_carries_many_requests(tmp_path: Path) -> None:
    target = Recorder()
    with serving(tmp_path / "s", target, ME), connected(tmp_path / "s") as link:
        for number in (1, 2, 3):
            link.sendall(request(wish("drain")))
            outcome = reply_on(link).outcome
            assert outcome == Outcome(result="done", message=f"number {number}")
        link.sendall(request(None))
        assert reply_on(link).report == target.report
    assert [action.verb for action in target.asked] == ["drain"] * 3


def test_requests_may_come_together_or_byte_by_byte(tmp_path: Path) -> None:
    target = Recorder()
    with serving(tmp_path / "s", target, ME), connected(tmp_path / "s") as link:
        for byte in request(wish("drain")):
            link.sendall(bytes([byte]))
        assert reply_on(link).outcome is not None
        with connected(tmp_path / "s") as other:
            other.sendall(request(wish("release")) + request(None)[:9])
            assert reply_on(other).outcome is not None
            other.sendall(request(None)[9:])
            assert reply_on(other).report is not None
    assert [action.verb for action in target.asked] == ["drain", "release"]


def changed(**changes: object) -> bytes:
    """A drain request with other fields."""
    document = json.loads(msgspec.json.encode(Request(version=VERSION, perform=wish("drain"))))
    for key, value in changes.items():
        (document if key in ("version", "node", "perform") else document["perform"])[key] = value
    return frame(json.dumps(document).encode())


@pytest.mark.parametrize(
    "data",
    [
        changed(version=2),
        changed(version="1"),
        changed(node="node7"),
        changed(verb="poweroff"),
        changed(verb="exec"),
        changed(verb=None),
        changed(reason=5),
        changed(perform="drain"),
        frame(b""),
        frame(b"{}"),
        frame(b"[]"),
        frame(b"\xff\xff"),
        frame(b"[" * 4000),
        LENGTH.pack(MESSAGE_LIMIT + 1),
        LENGTH.pack(2**32 - 1),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_request_is_answered_with_an_error_and_the_end(tmp_path: Path, data: bytes) -> None:
    target = Recorder()
    with serving(tmp_path / "s", target, ME):
        with connected(tmp_path / "s") as link:
            link.sendall(data)
            reply = reply_on(link)
            assert (reply.error is not None, reply.denied) == (True, False)
            assert link.recv(1) == b""
        with connected(tmp_path / "s") as link:
            link.sendall(request(None))
            assert reply_on(link).report is not None, "it goes on serving others"
    assert target.asked == []


@given(st.lists(st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(frame)), max_size=4))
@settings(max_examples=50)
def test_no_bytes_end_the_server_or_reach_the_target(pieces: list[bytes]) -> None:
    target = Recorder()
    with TemporaryDirectory() as folder, serving(Path(folder) / "s", target, ME):
        with connected(Path(folder) / "s") as link, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            link.sendall(b"".join(pieces))
            link.shutdown(socket.SHUT_WR)
            while link.recv(MESSAGE_LIMIT):
                pass
        with connected(Path(folder) / "s") as link:
            link.sendall(request(None))
            assert reply_on(link).report is not None
    assert target.asked == []


def test_another_uid_is_told_so_and_heard_no_further(tmp_path: Path) -> None:
    target = Recorder()
    with serving(tmp_path / "s", target, frozenset({os.geteuid() + 1})), connected(tmp_path / "s") as link:
        reply = reply_on(link)
        assert reply.denied
        assert link.recv(1) == b""
    assert target.asked == []


def test_one_that_stops_in_the_middle_is_dropped_and_delays_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "PATIENCE", 0.05)
    with serving(tmp_path / "s", Recorder(), ME), connected(tmp_path / "s") as slow:
        slow.sendall(request(wish("drain"))[:10])
        with connected(tmp_path / "s") as quick:
            quick.sendall(request(None))
            assert reply_on(quick).report is not None
        assert "did not end" in (reply_on(slow).error or "")
        assert slow.recv(1) == b""


def test_one_that_hangs_up_before_its_answer_harms_nobody(tmp_path: Path) -> None:
    target = Recorder()
    with serving(tmp_path / "s", target, ME):
        with connected(tmp_path / "s") as link:
            link.sendall(request(wish("drain")))
        with connected(tmp_path / "s") as link:
            link.sendall(request(None))
            assert reply_on(link).report is not None
    assert len(target.asked) <= 1


def test_what_waited_here_while_nobody_served_is_not_done_when_its_sender_has_gone(tmp_path: Path) -> None:
    target = Recorder()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(4)
        with connected(tmp_path / "s") as gone:
            gone.sendall(request(wish("drain")))
        with connected(tmp_path / "s") as patient:
            patient.sendall(request(wish("release")))
            server = daemon.Server(listener, target, ME, 0.05)
            assert server.serve() == "idle"
            assert reply_on(patient).outcome is not None
    assert [action.verb for action in target.asked] == ["release"]


def test_more_connections_than_make_sense_are_turned_away(tmp_path: Path) -> None:
    with serving(tmp_path / "s", Recorder(), ME):
        links = [connected(tmp_path / "s") for _ in range(daemon.LINKS)]
        try:
            for link in links:
                link.sendall(request(None))
                assert reply_on(link).report is not None
            with connected(tmp_path / "s") as late:
                assert "open already" in (reply_on(late).error or "")
        finally:
            for link in links:
                link.close()


def test_a_state_too_long_for_the_wire_is_an_error_and_no_crash(tmp_path: Path) -> None:
    long = NodeReport(target="recorder", node="here", state="IDLE", reason="\x01" * 4000)
    with serving(tmp_path / "s", Recorder(long), ME), connected(tmp_path / "s") as link:
        link.sendall(request(None))
        assert reply_on(link).error is not None


def test_it_ends_when_idle_and_not_while_it_is_asked(tmp_path: Path) -> None:
    with serving(tmp_path / "s", Recorder(), ME, idle=0.15) as thread:
        started = time.monotonic()
        while time.monotonic() - started < 0.3:
            with connected(tmp_path / "s") as link:
                link.sendall(request(None))
                assert reply_on(link).report is not None
        assert thread.is_alive()
        thread.join(5)
        assert not thread.is_alive()


def test_an_open_connection_without_work_does_not_keep_it(tmp_path: Path) -> None:
    with serving(tmp_path / "s", Recorder(), ME, idle=0.05) as thread, connected(tmp_path / "s") as link:
        thread.join(5)
        assert not thread.is_alive()
        assert link.recv(1) == b""


def test_while_something_is_at_work_it_is_not_idle(tmp_path: Path) -> None:
    looks = iter([True, True, True])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(1)
        server = daemon.Server(listener, Recorder(), ME, 0.01, lambda: next(looks, False))
        assert server.serve() == "idle"
    assert next(looks, None) is None


def test_each_verb_goes_to_the_one_whose_affair_it_is(tmp_path: Path) -> None:
    scheduler, left_over = Recorder(), Recorder()
    hands = targets.hands_of(scheduler, left_over, gpus.Settings(test=False))
    for verb in ("drain", "release", "requeue", "evict", "reboot"):
        hands.perform(remedy(verb))
    hands.perform(remedy("reclaim"))
    assert [action.verb for action in scheduler.asked] == ["drain", "release", "requeue", "evict", "reboot"]
    assert [action.verb for action in left_over.asked] == ["reclaim"]
    for verb in ("test", "reset"):
        outcome = hands.perform(remedy(verb))
        assert (outcome.result, "[actuators.gpus]" in outcome.message) == ("refused", True)
    assert (hands.name, hands.read_state(), hands.busy()) == ("recorder", scheduler.report, False)
    hands.stop()


def test_a_remedy_asks_the_scheduler_whether_the_drain_stands() -> None:
    reason = "gpuguard:0001 gpu3 lost xid79"
    flags = ("IDLE", "DRAIN")
    scheduler = Recorder(NodeReport(target="slurm", node="here", state="IDLE+DRAIN", flags=flags, reason=reason))
    hands = targets.hands_of(scheduler, None, gpus.Settings())
    assert hands.perform(remedy("test")).result == "foreign"


def test_each_decision_is_one_line_of_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hostile = msgspec.structs.replace(wish("drain"), key='x"\n{"event":"forged"}')
    with serving(tmp_path / "s", Recorder(), ME), connected(tmp_path / "s") as link:
        link.sendall(request(hostile))
        reply_on(link)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(line["event"], line["result"], line["uid"]) for line in lines] == [
        ("action.performed", "done", os.geteuid())
    ]


def test_allowed_are_root_itself_and_the_named(capfd: pytest.CaptureFixture[str]) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    assert daemon.allowed_uids(("nobody",), ()) == {0, os.geteuid(), nobody}
    assert daemon.allowed_uids(("no-such-user",), ("nobody",)) == {0, os.geteuid(), nobody}
    assert "user.absent" in capfd.readouterr().err
    with pytest.raises(ConfigInvalid, match="no-such-user"):
        daemon.allowed_uids((), ("no-such-user",))


def test_its_own_socket_is_for_the_group_and_replaces_a_dead_one(tmp_path: Path) -> None:
    path = tmp_path / "s"
    for _ in range(2):
        with daemon.own_socket(str(path)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            with pytest.raises(ConfigInvalid, match="listens there"):
                daemon.own_socket(str(path))
    path.unlink()
    path.write_text("precious")
    with pytest.raises(ConfigInvalid, match="no socket"):
        daemon.own_socket(str(path))
    assert path.read_text() == "precious"
    with pytest.raises(ConfigInvalid, match="name another"):
        daemon.own_socket(str(tmp_path / "absent" / "s"))


def run(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = daemon.run(arguments, {})
    return code, capfd.readouterr().err


def test_mistakes_in_the_configuration_are_all_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[agent]\nnot = "ours"\n[actuator]\ntarget = "slum"\nidle = 3\nallow_users = "root"\n'
        '[actuators.slurm]\ndeadlin = 3.0\nnode = "node[1-4]"\n'
    )
    code, said = run(["--config", str(config), "--socket", str(tmp_path / "s")], capfd)
    assert code == 2
    for named in ("target", "idle", "allow_users", "deadlin", "node"):
        assert named in said
    assert "[agent]" not in said
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--confg", "x"], 64), (["stray"], 64), (["--config", "/no/such/file"], 2), (["--allow-user", "no-such"], 2)],
)
def test_mistakes_on_the_command_line(arguments: list[str], code: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, "--socket", "/nonexistent/s"], capfd)[0] == code


def test_without_sections_it_is_a_dry_run() -> None:
    hands = targets.hands(targets.load(None))
    assert hands.name == DryRun.name
    assert [hands.perform(remedy(verb)).message[:7] for verb in ("test", "reset", "reclaim")] == ["dry run"] * 3


def test_only_the_chosen_target_is_loaded() -> None:
    code = (
        "import sys; from gpuguard.runtime import targets; targets.sections('slurm');"
        "print([m for m in sys.modules if m in ('ssl', 'http.client', 'yaml', 'gpuguard.actuators.kubernetes')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


START = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX); listener.bind(sys.argv[1]); listener.listen()
os.dup2(listener.fileno(), 3); os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.executable, [sys.executable, "-m", "gpuguard.daemons.actuator", "--config", sys.argv[2]])
"""


def test_started_through_its_socket_it_serves_and_ends_when_idle(tmp_path: Path) -> None:
    config, path = tmp_path / "config.toml", tmp_path / "s"
    config.write_text("[actuator]\nidle_exit = 1.0\n")
    child = subprocess.Popen([sys.executable, "-c", START, str(path), str(config)], stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(30, child.kill)
    watchdog.start()
    try:
        while not path.exists():
            assert child.poll() is None
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with link:
            link.settimeout(10)
            while link.connect_ex(str(path)) != 0:
                assert child.poll() is None
            link.sendall(request(wish("drain")))
            outcome = reply_on(link).outcome
        assert outcome is not None
        assert outcome.message.startswith("dry run")
        said = child.communicate()[1]
    finally:
        watchdog.cancel()
        child.kill()
        child.wait()
    assert child.returncode == 0
    assert '"reason":"idle"' in said
    assert path.exists(), "the socket is systemd's"
