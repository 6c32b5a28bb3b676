"""The page of a dcgm-exporter: fetched within a deadline, understood line by line, and brought into rows.

Shape   Prometheus' text format; rows of GPUs carry the labels gpu, UUID (or uuid), pci_bus_id, device, modelName,
        Hostname (hostname since 2026), and GPU_I_PROFILE and GPU_I_ID where they are about a MIG instance. Releases
        before 3.3.4 print no pci_bus_id: the UUID tells then whose row it is
Source  dcgm-exporter internal/pkg/rendermetrics; Prometheus exposition format 0.0.4
"""

import http.client
import io
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from gpuguard.errors import NotUnderstood, ReadFailed
from gpuguard.model.ids import PciAddress, SubjectId, gpu, parse_pci_address
from gpuguard.model.readings import Values
from gpuguard.sources.dcgm.fields import BY_NAME_ON_PAGE, fill

# 16 GPUs with every field, eight MIG instances each and the labels of Kubernetes stay below 4 MiB.
LARGEST = 8 * 2**20
# 64 GPUs with seven instances each. Anybody on the node may listen where nobody does, and make up as many as he likes.
MOST_SUBJECTS = 512

Finder = Callable[[str], PciAddress | None]

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+(-?\d+))?[ \t]*$")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_WHOLE = re.compile(r"[+-]?\d+$")
_ESCAPED = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


class Sample(NamedTuple):
    """One line of the page; `printed` are its labels as they stand there."""

    name: str
    labels: Mapping[str, str]
    value: int | float
    printed: str


class Target(NamedTuple):
    """Where a page is."""

    host: str
    port: int
    path: str


def parse_url(url: str) -> Target:
    """Host, port and path of a page.

    Raises  ValueError for anything but http://HOST[:PORT][/PATH]
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.username is not None:
        raise ValueError("is no http://HOST:PORT/PATH")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or any(character <= " " for character in path):
        raise ValueError("has blanks or other characters that no path has")
    return Target(parts.hostname, parts.port or 80, path)


def listens(target: Target, deadline: float) -> bool:
    """Whether anybody takes a connection there."""
    try:
        socket.create_connection((target.host, target.port), timeout=deadline).close()
    except OSError:
        return False
    return True


def fetch(target: Target, deadline: float, largest: int = LARGEST) -> str:
    """The page as text. It takes no longer than `deadline` seconds in all, however its bytes drip.

    Raises  ReadFailed without an answer, for an answer that is no page, and for one of more than `largest` bytes
    """
    ends = time.monotonic() + deadline
    where = f"http://{target.host}:{target.port}{target.path}"
    received = bytearray()
    host = f"[{target.host}]" if ":" in target.host else target.host
    # 1.0: the end of the answer is the end of the connection.
    request = f"GET {target.path} HTTP/1.0\r\nHost: {host}:{target.port}\r\nAccept: text/plain\r\n\r\n"
    try:
        with socket.create_connection((target.host, target.port), timeout=deadline) as link:
            link.sendall(request.encode("ascii"))
            while len(received) <= largest:
                left = ends - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                link.settimeout(left)
                more = link.recv(65536)
                if not more:
                    break
                received += more
    except TimeoutError as error:
        raise ReadFailed(f"{where} did not answer within {deadline:g} s; see that dcgm-exporter is well") from error
    except OSError as error:
        raise ReadFailed(f"{where} cannot be read: {error.strerror or error}") from error
    if len(received) > largest:
        raise ReadFailed(f"{where} is larger than {largest} bytes; give dcgm-exporter a shorter list of fields")
    return _body(bytes(received), where)


def _body(answer: bytes, where: str) -> str:
    """The text behind the header of an answer that came as a whole."""

    class Received:
        def makefile(self, mode: str) -> io.BytesIO:
            return io.BytesIO(answer)

    try:
        # It asks a socket for nothing but the file that the answer stands in.
        response = http.client.HTTPResponse(cast(socket.socket, Received()))
        response.begin()
        body = response.read()
    except http.client.HTTPException as error:
        raise ReadFailed(f"{where} gave an answer that is cut off, or no answer of HTTP: {error!r}") from error
    if response.status != 200:
        raise ReadFailed(f"{where} answered {response.status} {response.reason}")
    return body.decode("utf-8", errors="replace")


def samples(text: str) -> Iterator[Sample]:
    """Every line of the page that carries a value.

    Raises  NotUnderstood for a line that is not of the format, with the line
    """
    seen: dict[str, dict[str, str]] = {}  # all lines of a GPU have the same labels
    # By line feeds alone: a label may hold any other of the characters that splitlines takes for the end of a line.
    for number, whole in enumerate(text.split("\n"), start=1):
        line = whole.removesuffix("\r")
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise NotUnderstood(f"line {number} of the page is not of Prometheus' format: {line[:80]!r}", line)
        name, printed, value, _ = match.groups(default="")
        labels = seen.get(printed)
        if labels is None:
            labels = seen[printed] = _labels(printed, line)
        yield Sample(name, labels, _number(value, line), printed)


def _labels(text: str, line: str) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None:
            raise NotUnderstood(f"labels of the page are not of Prometheus' format: {text[at : at + 80]!r}", line)
        found[match[1]] = _ESCAPED.sub(lambda escaped: _UNESCAPED.get(escaped[1], escaped[0]), match[2])
        at = match.end()
    return found


def _number(text: str, line: str) -> int | float:
    """Whole numbers stay whole: a blank of 64 bits must not be rounded."""
    try:
        if "_" in text:  # of Python's numbers alone
            raise ValueError(text[:40])
        return int(text) if _WHOLE.match(text) else float(text)
    except ValueError as error:  # also of thousands of digits
        raise NotUnderstood(f"{text[:40]!r} on the page is no number", line) from error


def rows(text: str, find: Finder) -> dict[SubjectId, Values]:
    """What the page tells of each GPU and MIG instance, in base units. `find` gives the address of a GPU by its UUID.

    Shape   columns of model/quantities; a value that DCGM has not has no column, one that cannot be is None
    Raises  NotUnderstood for a page that is none
    """
    found: dict[SubjectId, Values] = {}
    whose: dict[str, SubjectId | None] = {}
    for sample in samples(text):
        field = BY_NAME_ON_PAGE.get(sample.name)
        if field is None:
            continue
        if sample.printed not in whose:
            whose[sample.printed] = _subject(sample.labels, find)
        subject = whose[sample.printed]
        if len(found) > MOST_SUBJECTS:
            raise NotUnderstood(f"the page tells of more than {MOST_SUBJECTS} GPUs and instances", text[:80])
        if subject is not None:
            fill(found.setdefault(subject, {}), field, sample.value, "mig" if subject.startswith("mig:") else "gpu")
    return {subject: values for subject, values in found.items() if values}


def _subject(labels: Mapping[str, str], find: Finder) -> SubjectId | None:
    """Whom a line is about; None for a GPU that nobody knows."""
    pci = _address(labels, find)
    instance = labels.get("GPU_I_ID", "")
    if pci is None or not instance:
        return None if pci is None else gpu(pci)
    if not instance.isdecimal() or len(instance) > 9:
        raise NotUnderstood(f"GPU_I_ID {instance[:40]!r} on the page is no number", instance)
    return SubjectId(f"mig:{pci}/{int(instance)}")


def _address(labels: Mapping[str, str], find: Finder) -> PciAddress | None:
    printed = labels.get("pci_bus_id", "")
    if printed:
        return parse_pci_address(printed)
    return find(labels.get("UUID") or labels.get("uuid") or "")
