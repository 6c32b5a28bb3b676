"""An API server that knows DRA, played from fixtures/kubernetes/dra: no real one of the tests does.

Discovery and ResourceSlices are files; rules are kept, with names that are taken once, selectors by label, and deletion
under preconditions, as the API conventions have them.
"""

import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gpuguard.web.access import Access
from gpuguard.web.kubernetes import Api

RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "kubernetes" / "dra"
ROOT = "/apis/resource.k8s.io"


class Played:
    """What the server holds. `versions` are those that have DeviceTaintRule; None: there is no such group at all."""

    def __init__(self) -> None:
        self.versions: tuple[str, ...] | None = ("v1beta2",)
        self.rules: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str]] = []
        self.status: int | None = None  # every question is answered with this one
        self.changed_between = False  # somebody changes each rule between its reading and its deletion

    def answer(self, method: str, target: str, body: Any) -> tuple[int, Any]:  # Any: JSON
        """Status and object."""
        path, _, query = target.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        self.asked.append((method, path))
        if self.status is not None:
            return self.status, _failed("said no", "Played")
        if self.versions is None:
            return 404, _failed("the server could not find the requested resource", "NotFound")
        version, _, kind = path.removeprefix(f"{ROOT}/").partition("/")
        if path == ROOT:
            return 200, json.loads((RECORDED / "group.json").read_text())
        if not kind:
            kinds = json.loads((RECORDED / "kinds.json").read_text())
            return 200, kinds["v1beta2" if version in self.versions else "v1"]
        if kind == "resourceslices":
            slices = json.loads((RECORDED / "slices.json").read_text())
            wanted = dict(part.split("=") for part in asked["fieldSelector"].split(","))
            slices["items"] = [
                one for one in slices["items"]
                if (one["spec"]["nodeName"], one["spec"]["driver"]) == (wanted["spec.nodeName"], wanted["spec.driver"])
            ]  # fmt: skip
            return 200, slices
        return self._rules(method, kind.partition("/")[2], body, asked.get("labelSelector", ""))

    def _rules(self, method: str, name: str, body: Any, selector: str) -> tuple[int, Any]:  # Any: JSON
        if method == "GET":
            wanted = dict(part.split("=") for part in selector.split(","))
            found = [rule for rule in self.rules.values() if wanted.items() <= rule["metadata"]["labels"].items()]
            if self.changed_between:
                found = json.loads(json.dumps(found))
                for rule in self.rules.values():
                    rule["metadata"] |= {"resourceVersion": "2", "generation": 2}
            return 200, {"kind": "DeviceTaintRuleList", "items": found}
        if method == "POST":
            name = body["metadata"]["name"]
            if name in self.rules:
                return 409, _failed(f'devicetaintrules "{name}" already exists', "AlreadyExists")
            body["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": "1", "generation": 1}
            self.rules[name] = body
            return 201, body
        if name not in self.rules:
            return 404, _failed(f'devicetaintrules "{name}" not found', "NotFound")
        has = self.rules[name]["metadata"]
        sure = body["preconditions"]
        if (sure["uid"], sure["resourceVersion"]) != (has["uid"], has["resourceVersion"]):
            return 409, _failed("the resourceVersion in the precondition does not match", "Conflict")
        del self.rules[name]
        return 200, {"kind": "Status", "status": "Success"}


def _failed(message: str, reason: str) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "message": message, "reason": reason}


@contextmanager
def playing() -> Iterator[tuple[Played, Api]]:
    """The server, and the API over it as gpuguard asks it."""
    played = Played()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, thing = played.answer(self.command, self.path, json.loads(text) if text else None)
            body = json.dumps(thing).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = _answer

        def log_message(self, format: str, *arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    api = Api(Access(server=f"http://127.0.0.1:{server.server_address[1]}", origin="a played server"))
    try:
        yield played, api
    finally:
        api.close()
        server.shutdown()
        thread.join(10)
        server.server_close()
