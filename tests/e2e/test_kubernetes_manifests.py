"""deploy/kubernetes against a real API server: it takes every object as written, the rights are enough, and none is
more than that.
"""

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuguard.actuators.kubernetes import Settings
from gpuguard.actuators.kubernetes.actuator import Kubernetes
from gpuguard.errors import ActionDeferred, ActionRefused, ReadFailed
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources import kubernetes as source
from gpuguard.web.access import from_kubeconfig
from gpuguard.web.kubernetes import Api
from tests.support.apiserver import ApiServer, until
from tests.support.manifests import (
    FOLDER,
    PRIVILEGED,
    apply,
    everything,
    kubeconfig,
    lacks,
    may,
    read,
    token,
    without_privilege,
)
from tests.support.wishes import remedy, wish

pytestmark = pytest.mark.kubernetes

ACCOUNT = "system:serviceaccount:gpuguard:gpuguard-actuator"
READER = "system:serviceaccount:gpuguard:gpuguard-pod-reader"


@pytest.fixture(scope="module")
def admin(apiserver: ApiServer) -> Iterator[Api]:
    """An administrator's hands, with every manifest applied."""
    api = Api(from_kubeconfig(Path(apiserver.kubeconfig)))
    for _, thing in everything():
        apply(api, without_privilege(thing))
    yield api
    api.close()


@pytest.mark.parametrize(
    ("name", "thing"), [pytest.param(name, thing, id=f"{name}-{thing['kind']}") for name, thing in everything()]
)
def test_the_server_takes_each_object_as_written(admin: Api, name: str, thing: dict[str, Any]) -> None:
    taken = without_privilege(thing)
    if taken != thing:
        with pytest.raises(ActionRefused) as refused:
            apply(admin, thing)
        assert str(refused.value).count("Forbidden") == 1, "it complains of this alone"
        assert PRIVILEGED in str(refused.value)
    assert lacks(taken, apply(admin, taken)) == []


# --- the actuator's rights -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secret(admin: Api) -> str:
    return token(admin, "gpuguard", "gpuguard-actuator")


@pytest.fixture
def round_trip(apiserver: ApiServer, admin: Api, secret: str, tmp_path: Path) -> Callable[[], list[str]]:
    """A whole life of a drain with the account's own token, on a fresh node; what did not come through of it."""

    def go() -> list[str]:
        node = apiserver.node({"nvidia.com/gpu.present": "true"})
        apiserver.pod(node, f"train-{node}")
        config = kubeconfig(tmp_path, apiserver.environ, secret)
        here = Kubernetes(Settings(node=node, kubeconfig=str(config), evict="severe", deadline=20.0), {})
        failed = []
        try:
            again = (wish("update_reason", code="xid95"), wish("update_reason", code="xid48"))
            for action in (wish("drain"), *again, remedy("reboot")):
                outcome = here.perform(action)
                if outcome.result != "done" or "without" in outcome.message:
                    failed.append(f"{action.verb}: {outcome.message}")
            end = time.monotonic() + 30.0
            while (outcome := here.perform(remedy("evict"))).result == "deferred" and time.monotonic() < end:
                if "does not allow" in outcome.message:
                    break
                time.sleep(0.05)
            if outcome.result != "done" or apiserver.pods(node):
                failed.append(f"evict: {outcome.message}")
            outcome = here.perform(wish("release"))
            if outcome.result != "done" or "without" in outcome.message:
                failed.append(f"release: {outcome.message}")
            fleet = here.read_fleet()
            if fleet.error or fleet.nodes < 1:
                failed.append(f"fleet: {fleet.error}")
            failed += book_kept(here, admin)
        finally:
            here.close()
        return failed

    return go


def book_kept(here: Kubernetes, admin: Api) -> list[str]:
    """The fleet's book is begun, and written once more."""
    leases = "/apis/coordination.k8s.io/v1/namespaces/gpuguard/leases"
    for lease in admin.get(leases, dict, time.monotonic() + 20).get("items") or ():
        admin.ask("DELETE", f"{leases}/{lease['metadata']['name']}", time.monotonic() + 20)
    ledger = here.ledger()
    try:
        for text in (b"one", b"two"):
            page = ledger.read(time.monotonic() + 20)
            if not ledger.write(page, text, time.monotonic() + 20):
                return ["lease: somebody was faster"]
    except (ActionDeferred, ActionRefused, ReadFailed) as error:
        return [f"lease: {error}"]
    return []


def test_the_rights_are_enough(apiserver: ApiServer, admin: Api, round_trip: Callable[[], list[str]]) -> None:
    until("the binding counts", lambda: may(admin, ACCOUNT, "", "", "nodes", "patch"))
    assert round_trip() == []


def rights() -> list[tuple[int, int, str, str]]:
    """Every single right of the actuator's: the role's place in rbac.yaml, the rule's in it, resource and verb."""
    return [
        (place, number, resource, verb)
        for place, thing in enumerate(read("rbac.yaml")) if thing["kind"] in ("Role", "ClusterRole")
        for number, rule in enumerate(thing["rules"])
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]  # fmt: skip


@pytest.mark.parametrize(("place", "number", "resource", "verb"), rights())
def test_each_right_is_needed(
    admin: Api, round_trip: Callable[[], list[str]], place: int, number: int, resource: str, verb: str
) -> None:
    """Without it, something of a drain's life does not come through."""
    role = read("rbac.yaml")[place]
    rule = role["rules"][number]
    less = {**role, "rules": [*role["rules"]]}
    less["rules"][number] = {**rule, "verbs": [one for one in rule["verbs"] if one != verb] or ["deletecollection"]}
    namespace = role["metadata"].get("namespace", "")

    def may_now() -> bool:
        return may(admin, ACCOUNT, namespace, rule["apiGroups"][0], resource, verb)

    try:
        apply(admin, less)
        until("the right is gone", lambda: not may_now())
        assert round_trip() != []
    finally:
        apply(admin, role)
        until("the right is back", may_now)


@pytest.mark.parametrize(
    ("namespace", "group", "resource", "verb"),
    [
        ("", "", "nodes", "update"), ("", "", "nodes", "delete"), ("", "", "pods", "delete"),
        ("", "", "pods", "create"), ("", "", "secrets", "get"), ("gpuguard", "", "secrets", "get"),
        ("default", "", "events", "delete"), ("kube-system", "coordination.k8s.io", "leases", "patch"),
        ("", "rbac.authorization.k8s.io", "roles", "create"), ("kube-system", "", "events", "create"),
        ("", "", "nodes/proxy", "get"), ("", "", "pods/exec", "create"),
    ],
)  # fmt: skip
def test_nobody_is_given_more(admin: Api, namespace: str, group: str, resource: str, verb: str) -> None:
    for account in (ACCOUNT, READER):
        assert not may(admin, account, namespace, group, resource, verb)


def test_the_reader_reads_pods_and_nothing_else(apiserver: ApiServer, admin: Api, tmp_path: Path) -> None:
    until("the binding counts", lambda: may(admin, READER, "", "", "pods", "watch"))
    assert not may(admin, READER, "", "", "nodes", "get")
    node = apiserver.node()
    apiserver.pod(node, f"read-{node}")
    config = kubeconfig(tmp_path, apiserver.environ, token(admin, "gpuguard", "gpuguard-pod-reader"))
    clock = ManualClock()
    reader = source.Kubernetes(
        source.Settings(kubeconfig=str(config), node=node, every=1.0), Path("/"), clock, {}
    )  # fmt: skip
    for _ in range(3):
        rows = {str(name): values for name, values in reader.sweep(clock.advance(1.0)).items()}
    assert reader.why == ""
    assert [values["job_name"] for name, values in rows.items() if name != "node"] == [f"read-{node}"]


# --- the pod ---------------------------------------------------------------------------------------------------------


def pod() -> dict[str, Any]:
    (daemons,) = read("daemonset.yaml")
    spec: dict[str, Any] = daemons["spec"]["template"]["spec"]
    return spec


def container(name: str) -> dict[str, Any]:
    (found,) = (one for one in (*pod()["containers"], *pod()["initContainers"]) if one["name"] == name)
    return dict(found)


def test_only_the_actuator_has_a_token_and_only_the_agent_devices() -> None:
    assert pod()["automountServiceAccountToken"] is False
    mounts = {name: {one["name"] for one in container(name)["volumeMounts"]} for name in ("agent", "actuator", "state")}
    assert "token" in mounts["actuator"]
    assert not {"token"} & (mounts["agent"] | mounts["state"])
    assert not {"kmsg", "state", "run"} & mounts["actuator"]
    assert mounts["agent"] & mounts["actuator"] == {"config", "actuator", "tmp"}


def test_the_actuator_has_no_power_on_its_host_and_a_user_of_its_own() -> None:
    rights = container("actuator")["securityContext"]
    assert (rights["privileged"], rights["allowPrivilegeEscalation"], rights["runAsNonRoot"]) == (False, False, True)
    assert rights["capabilities"] == {"drop": ["ALL"]}
    command = " ".join(container("agent")["command"])
    user, group = re.search(r"--reuid=(\d+)", command), re.search(r"--regid=(\d+)", command)
    assert user
    assert group
    assert rights["runAsUser"] != int(user[1]), "the same user could read the token through /proc"
    assert rights["runAsGroup"] == int(group[1]), "the socket is for this group"
    image = (FOLDER / "Dockerfile").read_text()
    for number in (user[1], str(rights["runAsUser"]), group[1]):
        assert number in image


def test_the_agents_command_gives_away_all_but_the_kernel_log() -> None:
    """As it stands in the manifest, with a look at itself in place of gpuguard."""
    command = container("agent")["command"]
    before = command[: command.index("gpuguard")]
    done = subprocess.run([*before, "cat", "/proc/self/status"], capture_output=True, text=True, check=True)
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    syslog = f"{1 << 34:016x}"
    assert {status[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {syslog}
    assert set(status["Uid"].split()) == {"64000"}
    assert status["NoNewPrivs"] == "1"
    assert status["Groups"].strip() == ""


def test_the_config_is_one_that_gpuguard_takes(tmp_path: Path) -> None:
    from gpuguard.runtime.assembly import assemble

    (thing,) = read("config.yaml")
    path = tmp_path / "config.toml"
    path.write_text(thing["data"]["config.toml"])
    parts = assemble(path)
    assert parts.policy.mode == "observe", "who installs it looks first"
    assert parts.config.settings("actuator").target == "kubernetes"
    port = container("agent")["ports"][0]
    assert parts.agent.listen.endswith(f":{port['containerPort']}")
    (monitor,) = read("pod-monitor.yaml")
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == port["name"]
    (daemons,) = read("daemonset.yaml")
    labels = daemons["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_what_kustomize_applies_is_there() -> None:
    (kustomization,) = read("kustomization.yaml")
    kinds = {thing["kind"] for name in kustomization["resources"] for thing in read(name)}
    assert kinds >= {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet"}
