"""An API server that speaks just enough for one node: versions, conflicts, the three kinds of patch, pods and leases.

It keeps objects by path. A write under an old `resourceVersion` is answered with 409. `fail` injects answers, and
`meanwhile` has somebody else write between a read and the write after it. It is plain HTTP on loopback.
"""

import copy
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]  # Any: JSON
NODES = "/api/v1/nodes"
UTC = 1_780_000_000.0


class FakeKube:
    """The server's objects, what was asked of it, and what it shall fail at."""

    def __init__(self, node: str = "here") -> None:
        self.node = node
        self.objects: dict[str, Json] = {}
        self.calls: list[str] = []  # "METHOD path", queries left out
        self.utc = UTC
        self.address = ""
        self.policy = ("policy/v1", "policy/v1beta1")
        self.budgets: dict[str, int] = {}  # by pod: how often it may not be evicted
        self.forbidden: Callable[[str, str], bool] = lambda method, path: False  # by method and path: 403
        self._versions = itertools.count(100)
        self._failures: list[tuple[str, str, int, Json, bool, dict[str, str]]] = []
        self._meanwhile: list[Callable[[], None]] = []
        self._lock = threading.RLock()
        self.put(f"{NODES}/{node}", {"metadata": {"name": node}, "spec": {}, "status": {"conditions": [READY]}})

    # --- what a test does

    def put(self, path: str, thing: Json) -> Json:
        """The object lies there, in a new version."""
        with self._lock:
            thing = copy.deepcopy(thing)
            meta = thing.setdefault("metadata", {})
            meta["resourceVersion"] = str(next(self._versions))
            meta.setdefault("uid", f"uid-of-{path.rsplit('/', 1)[-1]}")
            self.objects[path] = thing
            return thing

    def here(self) -> Json:
        """The node as it is now."""
        return self.objects[f"{NODES}/{self.node}"]

    def change(self, change: Json) -> None:
        """Somebody else patches the node."""
        path = f"{NODES}/{self.node}"
        self.put(path, _merged(self.objects[path], change))

    def fail(
        self, method: str, part: str, status: int, body: Json | None = None, *, done: bool = False, **headers: str
    ) -> None:
        """The next such question with `part` in its path gets this; with `done` it takes effect all the same."""
        self._failures.append((method, part, status, body or {}, done, headers))

    def meanwhile(self, act: Callable[[], None]) -> None:
        """Done right before the next write is looked at."""
        self._meanwhile.append(act)

    @property
    def writes(self) -> list[str]:
        """Everything that was asked for and is no reading."""
        return [call for call in self.calls if not call.startswith("GET ")]

    def kubeconfig(self, folder: Path) -> str:
        """A file that leads here."""
        path = folder / "kubeconfig.json"
        named = {
            "clusters": [{"name": "c", "cluster": {"server": self.address}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(named))
        return str(path)

    # --- what the server does

    def answer(self, method: str, target: str, content: str, body: bytes) -> tuple[int, Json, dict[str, str]]:
        """Status, object and headers."""
        url = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        with self._lock:
            self.calls.append(f"{method} {url.path}")
            if method != "GET" and self._meanwhile:
                self._meanwhile.pop(0)()
            failure = next((f for f in self._failures if f[0] == method and f[1] in url.path), None)
            if failure is not None:
                self._failures.remove(failure)
                if failure[4]:
                    self._served(method, url.path, query, content, body)
                return failure[2], failure[3], failure[5]
            if self.forbidden(method, url.path):
                return 403, _status(403, "Forbidden", 'User "agent" cannot do this'), {}
            return (*self._served(method, url.path, query, content, body), {})

    def _served(self, method: str, path: str, query: dict[str, str], content: str, body: bytes) -> tuple[int, Json]:
        match method:
            case "GET" if path in self.objects:
                return 200, self.objects[path]
            case "GET" if path == "/version":
                return 200, {"gitVersion": "v0"}
            case "GET" if path in (NODES, "/api/v1/pods"):
                return 200, {"metadata": {}, "items": list(self._listed(path, query))}
            case "PATCH":
                return self._patched(path, content, json.loads(body))
            case "POST" if path.endswith("/eviction"):
                return self._evicted(path.removesuffix("/eviction"), json.loads(body))
            case "POST":
                thing = json.loads(body)
                name = f"{path}/{thing['metadata']['name']}"
                if name in self.objects:
                    return 409, _status(409, "AlreadyExists", f"{name} already exists")
                return 201, self.put(name, thing)
        return 404, _status(404, "NotFound", f"{path} not found")

    def _listed(self, path: str, query: dict[str, str]) -> Iterator[Json]:
        for name, thing in self.objects.items():
            if path == NODES and name.startswith(f"{NODES}/"):
                label, _, value = query.get("labelSelector", "").partition("=")
                if label and thing["metadata"].get("labels", {}).get(label) != value:
                    continue
                if "fieldSelector" in query and not thing["spec"].get("unschedulable"):
                    continue
                yield thing
            elif path == "/api/v1/pods" and "/pods/" in name:
                yield thing

    def _patched(self, path: str, content: str, change: Json) -> tuple[int, Json]:
        base, status = (path.removesuffix("/status"), True) if path.endswith("/status") else (path, False)
        if base not in self.objects:
            return 404, _status(404, "NotFound", f"{base} not found")
        now = self.objects[base]
        asked = change.get("metadata", {}).pop("resourceVersion", None)
        if asked is not None and asked != now["metadata"]["resourceVersion"]:
            return 409, _status(409, "Conflict", "the object has been modified")
        # What is in the wrong place is ignored, with 200.
        allowed = {"status"} if status else {"metadata", "spec"}
        change = {key: value for key, value in change.items() if key in allowed}
        if "strategic" in content and "status" in change:
            wanted = {c["type"]: c for c in change["status"]["conditions"]}
            kept = {c["type"]: c for c in now["status"].get("conditions", [])}
            merged = {kind: {**kept.get(kind, {}), **wanted.get(kind, {})} for kind in {**kept, **wanted}}
            change = {"status": {"conditions": list(merged.values())}}
        after = _merged(now, change)
        return (200, now) if after == now else (200, self.put(base, after))

    def _evicted(self, path: str, wish: Json) -> tuple[int, Json]:
        if wish["apiVersion"] not in self.policy:
            return 400, _status(400, "BadRequest", f"no kind Eviction in version {wish['apiVersion']}")
        if path not in self.objects:
            return 404, _status(404, "NotFound", "no such pod")
        if wish["deleteOptions"]["preconditions"]["uid"] != self.objects[path]["metadata"]["uid"]:
            return 409, _status(409, "Conflict", "the UID in the precondition does not match")
        name = path.rsplit("/", 1)[-1]
        if self.budgets.get(name, 0) > 0:
            self.budgets[name] -= 1
            causes = {"causes": [{"reason": "DisruptionBudget", "message": "needs 1 healthy pods"}]}
            return 429, {**_status(429, "TooManyRequests", "would violate the budget"), "details": causes}
        del self.objects[path]
        return 201, _status(201, "", "")


READY = {"type": "Ready", "status": "True"}


@contextmanager
def serving_kube(fake: FakeKube) -> Iterator[FakeKube]:
    """The fake answers at its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each answer takes 40 ms

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            kind = self.headers.get("Content-Type", "")
            status, thing, headers = fake.answer(self.command, self.path, kind, body)
            text = json.dumps(thing).encode()
            self.send_response_only(status)
            for name, value in {"Date": formatdate(fake.utc, usegmt=True), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PATCH = do_POST = _answer  # the names that http.server looks for

        def log_message(self, *_: object) -> None:
            """Nothing: a test's output is its own."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    fake.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _merged(now: Any, change: Any) -> Any:  # Any: JSON, RFC 7386
    if not isinstance(change, dict):
        return change
    merged = dict(now) if isinstance(now, dict) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _status(code: int, reason: str, message: str) -> Json:
    return {"kind": "Status", "code": code, "reason": reason, "message": message}
