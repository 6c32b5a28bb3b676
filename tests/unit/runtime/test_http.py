"""/metrics: what is served, what is refused."""

import contextlib
import errno
import http.client
import select
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from socketserver import TCPServer

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gpuguard.errors import ConfigInvalid, ReadFailed
from gpuguard.model.units import Seconds
from gpuguard.runtime.http import CANNOT_ACCEPT, PEERS, MetricsServer, metrics_page, parse_address
from gpuguard.runtime.plugins import shelf
from tests.support.snapshots import full

SHORT = Seconds(0.2)


def families() -> Iterator[Metric]:
    for module in shelf("gpuguard.metrics").values():
        yield from module.families(full())


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    served = MetricsServer(("127.0.0.1", 0), {"/metrics": metrics_page(families)})
    served.start()
    yield served
    served.stop()


def get(server: MetricsServer, path: str) -> tuple[int, str]:
    host, port = server.address
    link = http.client.HTTPConnection(host, port, timeout=10)
    try:
        link.request("GET", path)
        answer = link.getresponse()
        return answer.status, answer.read().decode()
    finally:
        link.close()


def test_the_page_is_what_prometheus_reads(server: MetricsServer) -> None:
    status, text = get(server, "/metrics")
    assert status == 200
    read = {family.name: family for family in text_string_to_metric_families(text)}
    assert read["gpuguard_drain_active"].samples[0].value == 1.0
    assert [s.labels["state"] for s in read["gpuguard_subject_health"].samples if s.value == 1.0] == ["unfit"]
    assert read["gpuguard_events"].samples[0].name == "gpuguard_events_total"
    assert max(len(s.labels) for f in read.values() for s in f.samples) <= 6


def test_a_question_mark_does_not_matter_and_another_page_does(server: MetricsServer) -> None:
    assert get(server, "/metrics?x=1")[0] == 200
    status, text = get(server, "/")
    assert status == 404
    assert "/metrics" in text


def test_only_reading_is_served(server: MetricsServer) -> None:
    host, port = server.address
    request = urllib.request.Request(f"http://{host}:{port}/metrics", data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    refused.value.close()
    assert refused.value.code == 501


def test_an_address_in_use_names_the_next_step(server: MetricsServer) -> None:
    with pytest.raises(ReadFailed, match="--listen"):
        MetricsServer(server.address, {})


def test_peers_that_never_ask_hold_nobody_up(server: MetricsServer) -> None:
    """More of them than there are places, and all keep still."""
    with contextlib.ExitStack() as silent:
        for _ in range(3 * PEERS):
            silent.enter_context(socket.create_connection(server.address, timeout=10))
        began = time.monotonic()
        for _ in range(3):
            assert get(server, "/metrics")[0] == 200
        assert time.monotonic() - began < 2.0
        threads = [thread for thread in threading.enumerate() if thread.name == "scrape"]
        assert len(threads) <= PEERS


def test_a_peer_that_drips_is_cut_off_at_the_deadline_and_holds_nobody_up() -> None:
    server = MetricsServer(("127.0.0.1", 0), {"/metrics": metrics_page(families)}, deadline=Seconds(0.3))
    server.start()
    try:
        with socket.create_connection(server.address, timeout=10) as dripping:
            began = time.monotonic()
            dripping.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
            # Each byte comes long before any deadline of its own; readable means that the server ended it.
            while not select.select([dripping], [], [], 0.02)[0]:
                dripping.sendall(b"a")
                assert time.monotonic() - began < 5.0
            assert time.monotonic() - began >= 0.25
        assert get(server, "/metrics")[0] == 200
    finally:
        server.stop()


def test_a_peer_that_does_not_take_its_answer_is_cut_off() -> None:
    server = MetricsServer(("127.0.0.1", 0), {"/metrics": lambda: ("text/plain", b"x" * 64_000_000)}, deadline=SHORT)
    server.start()
    try:
        with socket.create_connection(server.address, timeout=10) as idle:
            idle.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert select.select([idle], [], [], 10.0)[0]
            _ends("scrape")
    finally:
        server.stop()


def test_between_scrapes_nothing_runs(server: MetricsServer) -> None:
    assert get(server, "/metrics")[0] == 200
    _ends("scrape")
    assert server._server.next_deadline() is None


def test_stopped_it_is_gone() -> None:
    server = MetricsServer(("127.0.0.1", 0), {})
    server.start()
    assert get(server, "/metrics")[0] == 404
    server.stop()
    assert not server._thread.is_alive()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(server.address, timeout=10)


def _ends(name: str) -> None:
    """Returns when the threads of that name that run now have ended."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9818", ("127.0.0.1", 9818)), ("[::1]:80", ("::1", 80)), (":9", ("127.0.0.1", 9))],
)
def test_addresses_are_understood(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["9818", "host", "host:", "host:99999", "host:x", "h\u00f6..:80", ""])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigInvalid, match="HOST:PORT"):
        parse_address(text)


def test_who_cannot_be_let_in_keeps_no_processor_busy(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[float] = []

    def full(self: TCPServer) -> None:
        tries.append(time.monotonic())
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(TCPServer, "get_request", full)
        with socket.create_connection(server.address):
            ends = time.monotonic() + 5.0
            while len(tries) < 3 and time.monotonic() < ends:
                select.select([], [], [], 0.02)
    assert len(tries) >= 3, "who waits at the door is let in as soon as that can be"
    assert tries[2] - tries[0] >= 2 * 0.9 * CANNOT_ACCEPT
    assert get(server, "/metrics")[0] == 200
