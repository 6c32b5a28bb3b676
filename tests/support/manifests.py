"""The manifests of deploy/kubernetes as objects, and how they come to a real API server."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gpuguard.errors import ActionDeferred
from gpuguard.web.kubernetes import AlreadyThere, Api

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
# What no API server knows: the one is read by kubectl, the other by an operator that brings its kind along.
NO_SERVERS = ("kustomization.yaml", "pod-monitor.yaml")
LONG = 20.0  # seconds, for one call on a busy machine
# Where objects of a kind lie, and whether in a namespace.
_PLURALS = {
    "Namespace": ("namespaces", False), "ServiceAccount": ("serviceaccounts", True), "ConfigMap": ("configmaps", True),
    "Secret": ("secrets", True), "DaemonSet": ("daemonsets", True), "ClusterRole": ("clusterroles", False),
    "ClusterRoleBinding": ("clusterrolebindings", False), "Role": ("roles", True),
    "RoleBinding": ("rolebindings", True),
}  # fmt: skip

Thing = dict[str, Any]  # Any: what YAML holds


def read(name: str) -> list[Thing]:
    """The objects of one file."""
    return [thing for thing in yaml.safe_load_all((FOLDER / name).read_text()) if thing]


def everything() -> Iterator[tuple[str, Thing]]:
    """Every object for an API server, with its file; a namespace comes before what lies in it."""
    names = sorted(path.name for path in FOLDER.glob("*.yaml") if path.name not in NO_SERVERS)
    for name in sorted(names, key=lambda name: name != "namespace.yaml"):
        for thing in read(name):
            yield name, thing


# The tests' server runs without --allow-privileged, which clusters have.
PRIVILEGED = "securityContext.privileged: Forbidden: disallowed by cluster policy"


def without_privilege(thing: Thing) -> Thing:
    """The object with no container that asks to be privileged."""
    copy: Thing = json.loads(json.dumps(thing))
    spec = copy.get("spec", {}).get("template", {}).get("spec", {})
    for container in spec.get("containers", ()):
        if container.get("securityContext", {}).get("privileged"):
            del container["securityContext"]["privileged"]
    return copy


def path_to(thing: Mapping[str, Any]) -> str:
    """Where the API has this object."""
    group = thing["apiVersion"]
    plural, spaced = _PLURALS[thing["kind"]]
    root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
    space = f"/namespaces/{thing['metadata']['namespace']}" if spaced else ""
    return f"{root}{space}/{plural}/{thing['metadata']['name']}"


def apply(admin: Api, thing: Mapping[str, Any]) -> Thing:
    """The object as the server has it now: as written, whether or not one stood there before."""
    path = path_to(thing)
    try:
        return admin.post(path.rpartition("/")[0], thing, dict, time.monotonic() + LONG)
    except AlreadyThere:
        return admin.put(path, thing, dict, time.monotonic() + LONG)


def token(admin: Api, namespace: str, name: str) -> str:
    """What a pod of this service account would have mounted."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": None}}
    return str(admin.post(path, kind, dict, time.monotonic() + LONG)["status"]["token"])


def kubeconfig(folder: Path, environ: Mapping[str, str], secret: str) -> Path:
    """A kubeconfig in JSON for the server that `environ` describes, with this token."""
    path = folder / "kubeconfig.json"
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "one"}}],
        "clusters": [
            {"name": "here", "cluster": {"server": environ["KUBE_SERVER"], "certificate-authority": environ["KUBE_CA"]}}
        ],
        "users": [{"name": "one", "user": {"token": secret}}],
    }
    path.write_text(json.dumps(config))
    return path


def lacks(sent: object, has: object, where: str = "") -> list[str]:
    """What of the sent object the server does not have: 1.20 drops fields that it does not know, and says nothing."""
    if isinstance(sent, dict) and isinstance(has, dict):
        return [line for key, value in sent.items() for line in lacks(value, has.get(key), f"{where}.{key}")]
    if isinstance(sent, list) and isinstance(has, list) and len(sent) == len(has):
        return [line for n, (a, b) in enumerate(zip(sent, has, strict=True)) for line in lacks(a, b, f"{where}[{n}]")]
    return [] if sent == has or (not sent and not has) else [f"{where}: {sent!r} became {has!r}"]


def may(admin: Api, account: str, namespace: str, group: str, resource: str, verb: str) -> bool:
    """Whether the server would let this service account do so."""
    resource, _, part = resource.partition("/")
    asked = {"group": group, "resource": resource, "subresource": part, "verb": verb, "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": account, "resourceAttributes": asked},
    }  # fmt: skip
    try:
        told = admin.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review, dict, time.monotonic() + LONG)
    except ActionDeferred:
        return False
    return bool(told["status"]["allowed"])
