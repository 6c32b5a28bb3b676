"""The real process behind a real Unix socket, asked by a real gRPC client as NVRx asks."""

import json
import os
import queue
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import msgspec
import pytest

from gpuguard.daemons.nvrx import CALLS, Verdict, serve
from gpuguard.runtime import cache
from gpuguard.runtime.clock import read_boot_id
from tests.support.agents import Agent
from tests.support.machines import machine
from tests.support.nvhcd import METHOD, asked, takes_the_node
from tests.support.snapshots import full

STARTS_WITHIN = 30.0


class Nvrx:
    """`gpuguard-nvrx` over a state directory of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.socket = str(folder / "nvrx.sock")
        self.log = folder / "nvrx.log"
        command = [sys.executable, "-m", "gpuguard.daemons.nvrx", "--socket", self.socket, *options]
        if "--state-dir" not in options:
            command += ["--state-dir", str(folder)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip
        ends = time.monotonic() + STARTS_WITHIN
        while "nvrx.started" not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < ends, self.log.read_text()
            time.sleep(0.02)

    def stop(self) -> int:
        """Its exit code, once told to stop."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(15)

    def cached(self, **changes: object) -> None:
        """The cache says this from now on."""
        boot = read_boot_id()
        assert boot is not None
        snapshot = msgspec.structs.replace(full(), boot=boot, drain=None, **changes)
        assert cache.Cache(str(self.folder)).write(msgspec.json.encode(snapshot))


@pytest.fixture
def nvrx(short_path: Path) -> Iterator[Nvrx]:
    made = Nvrx(short_path)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


FINE = {"level": 0, "confirmed": False, "line": "nothing stands", "subjects": ()}


def test_yes_and_no_from_the_cache_as_it_is_now(nvrx: Nvrx) -> None:
    assert takes_the_node(asked(nvrx.socket))
    nvrx.cached()
    response = asked(nvrx.socket)
    assert not takes_the_node(response)
    assert (response.success, response.exit_code) == (False, 2)
    assert json.loads(response.output)["failed_checks"] == ["gpu:0000:4e:00.0 xid79"]
    nvrx.cached(**FINE)
    response = asked(nvrx.socket)
    assert takes_the_node(response)
    assert json.loads(response.output)["message"] == "nothing stands"


def test_a_stale_cache_holds_nobody_up(nvrx: Nvrx) -> None:
    nvrx.cached()
    old = time.time() - cache.STALE_AFTER - 5
    os.utime(nvrx.folder / cache.NAME, (old, old))
    response = asked(nvrx.socket)
    assert takes_the_node(response)
    assert "no sign of life" in json.loads(response.output)["message"]


def test_a_cache_that_is_none_holds_nobody_up(nvrx: Nvrx) -> None:
    (nvrx.folder / cache.NAME).write_bytes(b"\0\xff{{{")
    response = asked(nvrx.socket)
    assert takes_the_node(response)
    assert "no cache" in json.loads(response.output)["message"]


def test_everybody_on_the_node_may_ask(nvrx: Nvrx) -> None:
    assert stat.S_IMODE(Path(nvrx.socket).stat().st_mode) == 0o666


def test_whatever_the_request_says_it_is_answered(nvrx: Nvrx) -> None:
    nvrx.cached()
    with grpc.insecure_channel(f"unix://{nvrx.socket}") as channel:
        call = channel.unary_unary(METHOD)
        first = call(b"", timeout=30)
        assert call(b"\xff" * 1000, timeout=30)[:2] == first[:2] == b"\x10\x02"
    assert not asked(nvrx.socket, "--anything", "x" * 1000).success


def test_another_method_is_refused_and_a_request_without_end_too(nvrx: Nvrx) -> None:
    with grpc.insecure_channel(f"unix://{nvrx.socket}") as channel:
        for method in ("/nvhcd.HealthCheckService/Other", "/other.Service/RunHealthCheck"):
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(method)(b"", timeout=30)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(METHOD)(b"x" * 1_000_000, timeout=30)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert takes_the_node(asked(nvrx.socket))


def test_noise_on_the_socket_disturbs_nobody(nvrx: Nvrx) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, os.urandom(4096), preface + b"\xff" * 99):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.connect(nvrx.socket)
            link.sendall(noise)
            assert takes_the_node(asked(nvrx.socket))


def test_who_comes_when_too_many_wait_is_told_so_and_nothing_is_kept_of_it(tmp_path: Path) -> None:
    answering, more = threading.Event(), 20

    def look() -> Verdict:
        answering.wait(60)
        return Verdict(True, "OK", "nothing stands")

    stop = serve(str(tmp_path / "nvrx.sock"), look)
    refused: queue.SimpleQueue[grpc.Future] = queue.SimpleQueue()
    try:
        with grpc.insecure_channel(f"unix://{tmp_path}/nvrx.sock") as channel:
            call = channel.unary_unary(METHOD)
            asked_all = [call.future(b"", timeout=60) for _ in range(CALLS + more)]
            for future in asked_all:
                future.add_done_callback(refused.put)
            codes = {refused.get(timeout=60).code() for _ in range(more)}
            assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            answering.set()
            assert sum(future.code() is grpc.StatusCode.OK for future in asked_all) == CALLS
            assert call(b"", timeout=60), "when it is over, all are answered again"
    finally:
        answering.set()
        stop()


def test_many_ask_at_once(nvrx: Nvrx) -> None:
    nvrx.cached()
    began = threading.Barrier(8)

    def ask(_: int) -> list[bool]:
        began.wait()
        return [takes_the_node(asked(nvrx.socket)) for _ in range(25)]

    with ThreadPoolExecutor(8) as pool:
        answers = [answer for some in pool.map(ask, range(8)) for answer in some]
    assert answers == [False] * 200
    assert nvrx.log.read_text().count("answer.changed") == 1


def test_it_ends_when_told_and_leaves_no_socket(nvrx: Nvrx) -> None:
    assert nvrx.stop() == 0
    assert not Path(nvrx.socket).exists()


def test_a_dead_socket_is_replaced_and_a_living_one_is_not(nvrx: Nvrx) -> None:
    command = [sys.executable, "-m", "gpuguard.daemons.nvrx", "--state-dir", str(nvrx.folder), "--socket", nvrx.socket]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "another process listens there" in done.stderr
    assert takes_the_node(asked(nvrx.socket))
    nvrx.process.kill()
    nvrx.process.wait()
    assert Path(nvrx.socket).exists()
    again = Nvrx(nvrx.folder)
    try:
        assert takes_the_node(asked(again.socket))
    finally:
        again.stop()


def test_what_is_no_socket_is_left_alone(short_path: Path) -> None:
    place = short_path / "file"
    place.write_text("mine")
    command = [sys.executable, "-m", "gpuguard.daemons.nvrx", "--state-dir", str(short_path), "--socket", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, place.read_text()) == (2, "mine")
    assert "no socket lies there" in done.stderr


def test_over_a_real_agent_alive_and_dead(short_path: Path, tmp_path: Path) -> None:
    """A recorded machine one of whose GPUs is lost: a no while its agent lives, a yes once it was silent for long."""
    root, state = str(machine("h100x8-lost")), tmp_path / "state"
    with Agent("h100x8-lost", tmp_path) as agent:
        made = Nvrx(short_path, *agent.memory, "--root", root)
        try:
            ends = time.monotonic() + STARTS_WITHIN
            while takes_the_node(asked(made.socket)):
                assert time.monotonic() < ends, made.log.read_text()
                time.sleep(0.1)
        finally:
            made.stop()
    again = Nvrx(short_path, *agent.memory, "--root", root)
    try:
        # What it wrote down last still counts while it is fresh.
        assert not takes_the_node(asked(again.socket))
        old = time.time() - cache.STALE_AFTER - 5
        os.utime(state / cache.NAME, (old, old))
        assert takes_the_node(asked(again.socket))
    finally:
        again.stop()
