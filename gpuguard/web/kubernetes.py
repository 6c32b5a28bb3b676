"""Kubernetes' API server: how it is reached, and what its answers mean for whoever asked.

A question ends in a value, or in one of two errors: ActionDeferred (ask again later: away, busy, somebody was faster,
half an answer) and ActionRefused (a person must do something: no right, no such object, a question that is not taken).
Sources turn both into their own words.

Source  Kubernetes v1.20.2 and v1.36.2 as observed; k8s.io/apimachinery/pkg/apis/meta/v1/types.go, Status
"""

import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from gpuguard import __version__
from gpuguard.errors import ActionDeferred, ActionRefused
from gpuguard.web.access import Access
from gpuguard.web.client import ANSWER_LIMIT, Answer, Client, Lines, NoAnswer

T = TypeVar("T")
PatchKind = Literal["merge", "strategic", "json", "apply"]
_PATCH: Final[Mapping[PatchKind, str]] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",  # JSON is YAML
}
# Names and annotations of all nodes without their specs and states: a tenth of the bytes.
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json"
# Who changed a field, as managedFields shows it.
FIELD_MANAGER: Final = "gpuguard"
# An API server that restarts is back after some seconds; one that is away longer is asked for by the caller's back-off.
AWAY: Final = 5.0
BUSY: Final = 5.0
SHOWN: Final = 300


class Conflict(ActionDeferred):
    """Somebody wrote since we read (409): read again, judge again."""


class AlreadyThere(Conflict):
    """What was to be created exists (409, AlreadyExists)."""


class Expired(ActionDeferred):
    """The version that was to be continued from is too old (410): list anew."""


class Throttled(ActionDeferred):
    """Too many questions (429). `budget`: a PodDisruptionBudget forbids this eviction now."""

    def __init__(self, message: str, retry_after: float, *, budget: bool) -> None:
        super().__init__(message, retry_after)
        self.budget = budget


class Forbidden(ActionRefused):
    """We are not known, or lack a right. A server that was started a moment ago says so too, until it has read its
    rules: whoever asks for something that matters asks again."""


class NotThere(ActionRefused):
    """No such object, or no such kind of objects (404)."""


class NotTaken(ActionRefused):
    """The server understands no such question or object (400, 405, 406, 415, 422)."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of a failure, in the server's words."""

    reason: str = ""
    message: str = ""


class Details(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a failure is about."""

    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: int | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What the API server sends in place of an object when it does not do what was asked."""

    message: str = ""
    reason: str = ""
    details: Details | None = None


class Api:
    """One API server, one call in flight at a time. Every call ends by `until`, seconds of time.monotonic().

    Paths are as in the API, e.g. /api/v1/nodes/NAME; use `path_of` for a name that somebody else chose.
    Raises  ActionDeferred, ActionRefused; each call says the more exact ones that matter
    """

    def __init__(self, access: Access, *, limit: int = ANSWER_LIMIT) -> None:
        self.access = access
        self._client = Client(access.server, tls=access.context, server_name=access.server_name, limit=limit)

    def get(self, path: str, kind: type[T], until: float, *, query: Mapping[str, str] | None = None,
            accept: str = "application/json") -> T:  # fmt: skip
        """The object, or the list, at the path. NotThere when there is none."""
        return read(self.ask("GET", path, until, query=query, accept=accept), kind)

    def patch(self, path: str, change: Any, kind: type[T], until: float, *, by: PatchKind = "merge") -> T:  # Any: JSON
        """The object as it is after the change. Conflict when `metadata.resourceVersion` in it is not the newest."""
        text = msgspec.json.encode(change)
        query = {"fieldManager": FIELD_MANAGER}
        return read(self.ask("PATCH", path, until, text, query=query, content=_PATCH[by]), kind)

    def post(self, path: str, thing: Any, kind: type[T], until: float) -> T:  # Any: JSON
        """What was created, or the server's Status. AlreadyThere when one of that name exists."""
        query = {"fieldManager": FIELD_MANAGER}
        return read(self.ask("POST", path, until, msgspec.json.encode(thing), query=query), kind)

    def put(self, path: str, thing: Any, kind: type[T], until: float) -> T:  # Any: JSON
        """The object in place of the one that was there. Conflict when that was changed since."""
        query = {"fieldManager": FIELD_MANAGER}
        return read(self.ask("PUT", path, until, msgspec.json.encode(thing), query=query), kind)

    def ask(
        self,
        method: str,
        path: str,
        until: float,
        body: bytes | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> Answer:
        """The server's answer as it came, of a status from 200 to 299."""
        headers = {**self.access.headers(), "Accept": accept, "User-Agent": f"gpuguard/{__version__}"}
        if body is not None:
            headers["Content-Type"] = content
        try:
            answer = self._client.ask(method, _with(path, query), until=until, body=body, headers=headers)
        except NoAnswer as error:
            raise ActionDeferred(f"the API server does not answer ({error})", AWAY) from error
        if not 200 <= answer.status < 300:
            raise complaint_of(answer, f"{method} {path}")
        return answer

    def watch(self, path: str, until: float, *, query: Mapping[str, str] | None = None) -> "Watch":
        """What changes there from now on, until the server ends it, `until` has come, or `close` is called.

        `query` holds fieldSelector, resourceVersion, timeoutSeconds; the latter should end it before `until` does.
        Raises  Expired when the resourceVersion is too old
        """
        headers = {**self.access.headers(), "Accept": "application/json", "User-Agent": f"gpuguard/{__version__}"}
        try:
            lines = self._client.lines(_with(path, {**(query or {}), "watch": "1"}), until=until, headers=headers)
        except NoAnswer as error:
            raise ActionDeferred(f"the API server does not answer ({error})", AWAY) from error
        if lines.answer.status != 200:
            raise complaint_of(lines.answer, f"GET {path}")
        return Watch(lines, path)

    def close(self) -> None:
        """The connection is given up; a call in another thread ends now."""
        self._client.close()


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a watch. `type` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: msgspec.Raw


class Watch:
    """The changes of a collection as they come."""

    def __init__(self, lines: Lines, path: str) -> None:
        self._lines, self._path = lines, path

    def __iter__(self) -> Iterator[Change]:
        """Each change.

        Raises  Expired, ActionDeferred when it broke off or is not understood
        """
        try:
            for line in self._lines:
                change = _decoded(line, Change)
                if change.type == "ERROR":
                    status = _status(bytes(change.object))
                    raise Expired(f"the watch of {self._path} was ended: {status.message[:SHOWN]}", 1.0)
                yield change
        except NoAnswer as error:
            raise ActionDeferred(f"the watch of {self._path} broke off ({error})", AWAY) from error

    def close(self) -> None:
        """It ends now. From any thread."""
        self._lines.close()


def path_of(*parts: str) -> str:
    """A path whose parts hold no other path, query or blank, whoever chose them."""
    return "/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)


def read(answer: Answer, kind: type[T]) -> T:
    """The object in an answer.

    Raises  ActionDeferred when it is not one of that kind
    """
    return _decoded(answer.body, kind)


def complaint_of(answer: Answer, asked: str) -> ActionDeferred | ActionRefused:
    """The error that an answer outside 200 to 299 stands for; `asked` is the method and path."""
    status = _status(answer.body)
    said = ascii(status.message or answer.body[:SHOWN].decode("utf-8", "replace"))[1:-1][:SHOWN] or "nothing"
    causes = {cause.reason for cause in (status.details and status.details.causes) or ()}
    told = status.details.retry_after_seconds if status.details else None
    pause = answer.retry_after if answer.retry_after is not None else told
    match answer.status:
        case 401:
            return Forbidden(
                f"the API server does not know who we are (401 to {asked}: {said}); is the token of the service "
                "account or kubeconfig still valid?"
            )
        case 403:
            return Forbidden(
                f"the API server does not allow {asked} ({said}); give this identity the rights in deploy/kubernetes"
            )
        case 404:
            return NotThere(f"the API server has nothing at {asked} ({said})")
        case 409 if "FieldManagerConflict" in causes:
            return ActionRefused(f"another field manager holds what {asked} would change ({said})")
        case 409 if status.reason == "AlreadyExists":
            return AlreadyThere(f"{asked}: it exists already ({said})", 1.0)
        case 409:
            return Conflict(f"{asked}: somebody else wrote at the same moment ({said})", 1.0)
        case 410:
            return Expired(f"{asked}: too old ({said})", 1.0)
        case 429:
            budget = "DisruptionBudget" in causes
            return Throttled(f"{asked}: not now ({said})", BUSY if pause is None else float(pause), budget=budget)
        case code if code >= 500:
            later = AWAY if pause is None else float(pause)
            return ActionDeferred(f"the API server failed with {code} at {asked} ({said})", later)
        case code if 300 <= code < 400:
            where = ascii(answer.location)[1:-1] or "nowhere"
            return ActionRefused(
                f"{asked} is redirected to {where}; gpuguard follows none, set the server's own address"
            )
        case code:
            return NotTaken(f"the API server does not take {asked} ({code}: {said}); please report this")


def _status(body: bytes) -> Status:
    try:
        return msgspec.json.decode(body, type=Status)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Status()  # a proxy before it, or a server on its way up, answers in plain text


def _decoded(text: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        # Half an answer says nothing of whether a write was done: it is looked at again.
        raise ActionDeferred(
            f"the API server's answer is not understood: {error}; is that its address?", 10.0
        ) from error


def _with(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urllib.parse.urlencode(query)}" if query else path
