"""One webhook: what is tried again, what is not, and that its address is shown nowhere."""

import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import tenacity

from gpuguard.errors import ActionRefused, ConfigInvalid
from gpuguard.model.units import Seconds, Secret
from gpuguard.notices import Message, alertmanager, generic
from gpuguard.runtime.telling_settings import Settings
from gpuguard.runtime.webhook import LONGEST_ASKED, Carrier, NotNow, _wait, address_of, showable, split
from tests.support.webhooks import receiver

MESSAGE = Message(body=b"{}", headers={"Content-Type": "application/json"})
QUICK = Settings(tries=3, longest_wait=Seconds(0.001), timeout=Seconds(5.0))
SECRET = "/services/T00/B00/verysecret"


def _carrier(url: str, settings: Settings = QUICK, ending: threading.Event | None = None) -> Carrier:
    return Carrier("generic", generic.Settings(url=Secret(url)), settings, ending or threading.Event())


def test_it_is_posted_to_the_whole_address() -> None:
    with receiver() as there:
        _carrier(f"{there.base}{SECRET}?a=b").carry(MESSAGE)
    ((path, headers, body),) = there.came
    assert (path, body) == (f"{SECRET}?a=b", b"{}")
    assert headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_may_be_taken_later_is_tried_again(status: int) -> None:
    with receiver([(status, {}), (status, {}), (204, {"Content-Length": "0"})]) as there:
        _carrier(there.base).carry(MESSAGE)
    assert len(there.came) == 3


def test_it_is_given_up_after_so_many_tries() -> None:
    with receiver([(503, {})]) as there, pytest.raises(NotNow, match="answered 503"):
        _carrier(there.base).carry(MESSAGE)
    assert len(there.came) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_what_will_never_be_taken_is_not_tried_again(status: int) -> None:
    with receiver([(status, {})]) as there, pytest.raises(ActionRefused, match=str(status)) as failed:
        _carrier(f"{there.base}{SECRET}").carry(MESSAGE)
    assert len(there.came) == 1
    assert "verysecret" not in str(failed.value)


@pytest.mark.parametrize(
    "said",
    ["Cannot POST /services/T00/B00/verysecret", "no hook %76erysecret", "no hook %2576erysecret", "VERYSECRET",
     "/services&#x2F;T00", "verysecr...", "x" * 195 + "verysecret", "key=hidden+word", "&#118;erysecret"],
)  # fmt: skip
def test_an_answer_that_repeats_the_address_is_not_shown(said: str) -> None:
    for secret in (f"{SECRET}?key=hidden+word", "/%73ervices/T00/B00/%76erysecret?key=hidden%20word"):
        assert showable(said.encode(), secret) == "what it said repeats the address, and is not shown"


def test_any_other_answer_is_shown_as_far_as_it_is_short() -> None:
    assert showable(b" no_service\n", SECRET) == "no_service"
    assert showable(b"x" * 300, SECRET) == "x" * 200
    assert showable(b"\xff", "/") == "\\xff"


def test_neither_a_complaint_nor_a_broken_answer_shows_the_address() -> None:
    for status, reply in (
        (ActionRefused, b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s"),
        (NotNow, b"%.0d%s"),
    ):
        text = b"Cannot POST " + SECRET.encode()
        with socket.create_server(("127.0.0.1", 0)) as server:

            def answer(server: socket.socket = server, words: bytes = reply % (len(text), text)) -> None:
                with server.accept()[0] as peer:
                    peer.recv(65536)
                    peer.sendall(words)

            thread = threading.Thread(target=answer, name="answer")
            thread.start()
            once = Settings(tries=1, longest_wait=Seconds(0.001), timeout=Seconds(5.0))
            with pytest.raises(status, match="repeats the address, and is not shown") as failed:
                _carrier(f"http://127.0.0.1:{server.getsockname()[1]}{SECRET}", once).carry(MESSAGE)
            thread.join()
        assert "T00" not in str(failed.value)
        assert "verysecret" not in str(failed.value)


def test_a_redirect_is_not_followed() -> None:
    with (
        receiver() as elsewhere,
        receiver([(307, {"Location": elsewhere.base})]) as there,
        pytest.raises(ActionRefused, match="redirect"),
    ):
        _carrier(there.base).carry(MESSAGE)
    assert elsewhere.came == []


def test_nobody_there_is_not_now_without_the_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(NotNow) as failed:
            _carrier(f"{base}{SECRET}").carry(MESSAGE)
    assert "verysecret" not in str(failed.value)
    assert "IPAddressAllow" not in str(failed.value)


def test_a_receiver_elsewhere_that_cannot_be_reached_names_the_units_drop_in() -> None:
    # TEST-NET-1 of RFC 5737: nobody is there.
    hasty = Settings(tries=1, timeout=Seconds(0.01))
    with pytest.raises(NotNow, match="IPAddressAllow=") as failed:
        _carrier(f"https://192.0.2.1{SECRET}", hasty).carry(MESSAGE)
    assert "docs/notices.md" in str(failed.value)
    assert "verysecret" not in str(failed.value)


def test_no_try_follows_when_the_agent_ends() -> None:
    ending = threading.Event()
    ending.set()
    with receiver([(503, {})]) as there, pytest.raises(NotNow):
        _carrier(there.base, Settings(), ending).carry(MESSAGE)
    assert len(there.came) == 1


@pytest.mark.parametrize(("asked", "waits"), [(None, 2.0), (1.0, 2.0), (30.0, 30.0), (86400.0, LONGEST_ASKED)])
def test_what_the_receiver_asks_for_is_waited_within_reason(asked: float | None, waits: float) -> None:
    wait = _wait(tenacity.wait_fixed(2.0))
    error = NotNow("later", asked)
    state = SimpleNamespace(outcome=SimpleNamespace(exception=lambda: error))
    assert wait(state) == waits  # type: ignore[arg-type]  # of a state it looks at the outcome alone


def test_the_address_is_read_anew_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "slack"
    file.write_text("https://hooks.example.org/1\n")
    form = generic.Settings(url_file=str(file))
    assert address_of("slack", form) == "https://hooks.example.org/1"
    file.write_text("https://hooks.example.org/2\n")
    assert address_of("slack", form) == "https://hooks.example.org/2"


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"x" * 5000])
def test_a_file_without_an_address_says_what_to_do(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "slack"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigInvalid, match=r"\[notify.slack\] url_file"):
        address_of("slack", generic.Settings(url_file=str(file)))


@pytest.mark.parametrize(
    ("address", "path", "base", "rest"),
    [
        ("https://h/x", "", "https://h", "/x"),
        ("https://h", "", "https://h", "/"),
        ("http://h:9093", "/api/v2/alerts", "http://h:9093", "/api/v2/alerts"),
        ("http://h:9093/am/", "/api/v2/alerts", "http://h:9093", f"/am{alertmanager.PATH}"),
        ("http://h/api/v2/alerts/", "/api/v2/alerts", "http://h", "/api/v2/alerts"),
        ("https://[2001:db8::1]:1/x?q=1", "", "https://[2001:db8::1]:1", "/x?q=1"),
    ],
)
def test_an_address_is_parted_in_what_may_be_shown_and_what_not(address: str, path: str, base: str, rest: str) -> None:
    assert split(address, path) == (base, rest)


@pytest.mark.parametrize(
    "address",
    ["", "h", "ftp://h/verysecret", "https://", "https://u:verysecret@h", "https://h:port/verysecret",
     "https://h/very secret", "https://h/verysecret#a", "https://h/verysecret\r\nX: y", "https://[::1/verysecret"],
)  # fmt: skip
def test_an_address_that_is_none_is_not_shown(address: str) -> None:
    with pytest.raises(ConfigInvalid) as failed:
        split(address)
    assert "secret" not in str(failed.value)
