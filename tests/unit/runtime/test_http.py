"""/metrics: what is served, what is refused."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuguard.errors import ConfigInvalid, ReadFailed
from gpuguard.runtime.http import MetricsServer, exposition, parse_address
from gpuguard.runtime.plugins import shelf
from tests.support.snapshots import full


def families() -> Iterator[object]:
    for module in shelf("gpuguard.metrics").values():
        yield from module.families(full())


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    served = MetricsServer(("127.0.0.1", 0), {"/metrics": exposition(families)})
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


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9818", ("127.0.0.1", 9818)), ("[::1]:80", ("::1", 80)), (":9", ("127.0.0.1", 9))],
)
def test_addresses_are_understood(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["9818", "host", "host:", "host:99999", "host:x", ""])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigInvalid, match="HOST:PORT"):
        parse_address(text)
