"""One webhook: a message is carried there, tried again for a while, and never sent anywhere else.

Loaded only where a webhook is configured: HTTP, TLS and tenacity cost an agent some MiB. The address may be a secret as
a whole (Slack's is), so only its scheme, host and port are ever shown; of an answer nothing that may repeat a piece of
the rest, as "Cannot POST /services/..." does. Redirects are not followed, the environment's
proxies not used, and a certificate that is not trusted is a refusal like any other.

Source  RFC 9110 sections 10.2.3 (Retry-After) and 15; RFC 6585 section 4 (429)
"""

import html
import http.client
import ssl
import threading
import time
import urllib.parse
from typing import Final

import tenacity

from gpuguard.errors import ActionRefused, ConfigInvalid, ReadFailed
from gpuguard.model.units import Secret
from gpuguard.notices import Message, Webhook
from gpuguard.runtime.files import read_regular
from gpuguard.runtime.telling_settings import Settings
from gpuguard.web.client import Client, NoAnswer, on_loopback

# What a receiver may ask us to wait for at once. Units: seconds
LONGEST_ASKED: Final = 300.0
ADDRESS_LIMIT: Final = 4096
# Of an answer, where nothing of the address is in it; and how much of a piece of the address gives it away. Units: 1
SAID_SHOWN: Final = 200
GIVEN_AWAY: Final = 8
# "Not now": it may be taken later as it is.
AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
DROP_IN: Final = (
    "the agent's unit lets it talk to this machine alone: `systemctl edit gpuguard-agent.service`, [Service] "
    "IPAddressAllow=<the receiver's address, and the resolver's>; see docs/notices.md"
)


class NotNow(ReadFailed):
    """No answer, or one that says later. Units: retry_after: seconds, None where the receiver did not say."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Carrier:
    """Carries messages to one webhook. `ending` is set when the agent ends: then no try follows another."""

    def __init__(self, name: str, webhook: Webhook, settings: Settings, ending: threading.Event) -> None:
        self._name, self._webhook, self._settings = name, webhook, settings
        self._client: Client | None = None
        self._address = ""
        self._trying = tenacity.Retrying(
            stop=tenacity.stop_any(
                tenacity.stop_after_attempt(settings.tries), tenacity.stop_when_event_set(ending)
            ),
            wait=_wait(tenacity.wait_exponential_jitter(initial=1.0, max=float(settings.longest_wait), jitter=1.0)),
            retry=tenacity.retry_if_exception_type(NotNow),
            sleep=tenacity.sleep_using_event(ending),
            reraise=True,
        )  # fmt: skip

    def carry(self, message: Message) -> None:
        """The receiver has taken the message.

        Raises  NotNow after the last try; ActionRefused when it will never be taken as it is; ConfigInvalid when the
                address is none; none of them shows the address
        """
        try:
            self._trying(self._once, message)
        finally:
            self.close()  # notices are rare: no connection is kept for the next

    def close(self) -> None:
        """A try that waits for its answer ends now. From any thread."""
        if self._client is not None:
            self._client.close()

    def _once(self, message: Message) -> None:
        address = address_of(self._name, self._webhook)
        base, path = split(address, message.path)
        client = self._client_for(base)
        try:
            answer = client.ask(
                "POST", path, until=time.monotonic() + self._settings.timeout, body=message.body,
                headers=message.headers,
            )  # fmt: skip
        except NoAnswer as error:
            hint = "" if on_loopback(base) else f"; if that goes on: {DROP_IN}"
            # What is no HTTP is quoted, and may repeat the address as well.
            quoted = isinstance(error.__cause__, http.client.HTTPException)
            words = f"{base}: {showable(str(error).encode(), split(address)[1])}" if quoted else str(error)
            raise NotNow(f"{words}{hint}") from error
        if 200 <= answer.status < 300:
            return
        said = showable(answer.body, split(address)[1])
        words = f"{base}: answered {answer.status}" + (f" ({said})" if said else "")
        if answer.status in AGAIN:
            raise NotNow(words, answer.retry_after)
        if 300 <= answer.status < 400:
            words = f"{base}: answered {answer.status}, a redirect, which is not followed; give the address it leads to"
        raise ActionRefused(words)

    def _client_for(self, base: str) -> Client:
        if self._client is None or base != self._address:
            self.close()
            self._client, self._address = Client(base, tls=self._tls, limit=64 * 1024), base
        return self._client

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._settings.ca_file or None)


class _wait(tenacity.wait.wait_base):
    """What the receiver asked for, within reason, and else longer and longer; never less than the latter."""

    def __init__(self, usual: tenacity.wait.wait_base) -> None:
        self._usual = usual

    def __call__(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.retry_after if isinstance(error, NotNow) and error.retry_after is not None else 0.0
        return max(float(self._usual(state)), min(asked, LONGEST_ASKED))


def address_of(name: str, webhook: Webhook) -> Secret:
    """The whole address: from the settings, or from the file they name.

    Reads   `url_file`: one line
    Raises  ConfigInvalid
    """
    if not webhook.url_file:
        return webhook.url
    try:
        text = read_regular(webhook.url_file, ADDRESS_LIMIT)[0].decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not one line of ASCII"
        raise ConfigInvalid(
            [f"[notify.{name}] url_file: {webhook.url_file}: {why}; put the address there, for user gpuguard to read"]
        ) from error
    return Secret(text)


def showable(body: bytes, secret: str) -> str:
    """The beginning of an answer; of one that repeats a piece of path or query, in whatever form, nothing but that."""
    text = body.decode("utf-8", "backslashreplace")
    if any(piece in form for piece in _pieces(secret) for form in _forms(text)):
        return "what it said repeats the address, and is not shown"
    return text[:SAID_SHOWN].strip()


def _forms(text: str) -> set[str]:
    """As it stands, and as it reads when what was escaped for an address or a page, twice at most, is not any more."""
    forms = {text}
    for _ in range(2):
        forms |= {plain for form in forms for plain in (urllib.parse.unquote_plus(form), html.unescape(form))}
    return {form.casefold() for form in forms}


def _pieces(secret: str) -> set[str]:
    """What gives path and query away: each part of them, and each GIVEN_AWAY characters of a long one."""
    found: set[str] = set()
    for form in _forms(secret):
        for part in form.replace("?", "/").replace("&", "/").replace("=", "/").split("/"):
            found.update(part[at : at + GIVEN_AWAY] for at in range(max(1, len(part) - GIVEN_AWAY + 1)))
    return {piece for piece in found if len(piece) > 1}  # a single letter is in every answer


def split(address: str, path: str = "") -> tuple[str, str]:
    """Scheme, host and port, which may be shown; and the rest, which may not.

    Shape   http(s)://host[:port][/path][?query]; a user and a password are refused
    Raises  ConfigInvalid, without the address
    """
    wrong = ConfigInvalid(["a webhook's address must be as https://host[:port]/path, without user, password and #"])
    try:
        parts = urllib.parse.urlsplit(address)
        port = parts.port
    except ValueError:
        raise wrong from None  # its words would show the address
    plain = address.isascii() and address.isprintable() and " " not in address
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or "@" in parts.netloc
        or parts.fragment
        or not plain
    ):
        raise wrong
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    base = f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")
    place = parts.path.rstrip("/") if path else parts.path
    if path and not place.endswith(path):
        place += path
    return base, (place or "/") + (f"?{parts.query}" if parts.query else "")
