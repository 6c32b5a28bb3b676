"""From a line in the real kernel ring to a cordoned node on a real API server and back, and through an outage.

The agent has a kubeconfig for what it reads, the actuator one for what it writes; both are real processes.
"""

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apiserver import ApiServer
from tests.support.chain import Chain, until
from tests.support.kmsg import require_kmsg, say

pytestmark = [pytest.mark.kubernetes, pytest.mark.kmsg]

CONFIG = """\
[policy]
mode = "drain"
clean_for = 0.0
clean_passes = 1
releases_a_day = 1000
# The server has the nodes of other tests too, which began drains a moment ago.
[fleet.budget]
share = 1.0
overall = 1.0
most = 1000
cause_nodes = 1000
[sources.kmsg]
trust_user_records = true
[sources.kubernetes]
kubeconfig = "{kubeconfig}"
node = "{node}"
every = 1.0
[agent]
sources = ["kmsg", "kubernetes"]
listen = "127.0.0.1:0"
[actuators.delegate]
socket = "{folder}/a.sock"
[actuator]
target = "kubernetes"
socket = "{folder}/a.sock"
[actuators.kubernetes]
node = "{node}"
kubeconfig = "{kubeconfig}"
"""
_ADDRESSES = iter(range(0x10, 0xF0))


def address() -> str:
    """An address that no other test of this run used: the ring is read whole at each start."""
    return f"{os.getpid() % 0xEFFF + 0x1000:04x}:{next(_ADDRESSES):02x}:01"


class OnKubernetes(Chain):
    """The chain, set to act on one node of an API server."""

    def __init__(self, folder: Path, server: ApiServer, node: str) -> None:
        self.server, self.node = server, node
        self.folder, self.config = folder, folder / "config.toml"
        self.config.write_text(CONFIG.format(folder=folder, node=node, kubeconfig=server.kubeconfig))
        self.state, self.log, self.processes = folder / "state", folder / "log", {}

    def cordoned(self) -> bool:
        """Whether the node takes no pods, as the witness sees it."""
        return bool(self.server.seen(self.node).spec.unschedulable)

    def drain(self) -> str:
        """How the drain stands, by the agent."""
        return str((self.snapshot().get("drain") or {}).get("state"))


@pytest.fixture
def chain(apiserver: ApiServer, short_path: Path) -> Iterator[OnKubernetes]:
    require_kmsg()
    chain = OnKubernetes(short_path, apiserver, apiserver.node())
    with chain.running():
        yield chain


def lost(pci: str) -> None:
    say(f"NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")


def test_a_kernel_line_cordons_the_node_and_a_persons_word_gives_it_back(chain: OnKubernetes) -> None:
    pci = address()
    lost(pci)
    until(chain.cordoned, "the node is cordoned")
    seen = chain.server.seen(chain.node)
    reason = seen.metadata.annotations["gpuguard.io/drain"]
    assert reason.endswith(" lost xid79")
    assert chain.server.taints(chain.node) == [("gpuguard.io/unfit", "NoSchedule")]
    until(lambda: chain.drain() == "standing", "the outcome is known")
    assert chain.run("check")[0] == 2
    assert "fallen off the bus" in chain.run("why", reason.removeprefix("gpuguard:")[:4])[1]
    code, said = chain.run("ack", "xid79", "--by", "kim", "--reason", "board replaced")
    assert code == 0, said
    until(lambda: not chain.cordoned(), "the node is given back")
    assert chain.server.taints(chain.node) == []
    assert "gpuguard.io/drain" not in (chain.server.seen(chain.node).metadata.annotations or {})


def test_a_persons_cordon_is_left_alone(chain: OnKubernetes) -> None:
    chain.server.core.patch_node(chain.node, {"spec": {"unschedulable": True}})
    lost(address())
    until(lambda: chain.drain() == "foreign", "the agent knows")
    assert "gpuguard.io/drain" not in (chain.server.seen(chain.node).metadata.annotations or {})


def test_the_jobs_of_the_node_have_names(chain: OnKubernetes) -> None:
    name = f"train-{chain.node}"
    chain.server.pod(chain.node, name)
    served = next(line for line in chain.log.read_text().splitlines() if "metrics.served" in line)

    def told() -> bool:
        with urllib.request.urlopen(f"http://{json.loads(served)['address']}/snapshot", timeout=10) as page:
            return name.encode() in page.read()

    until(told, "the pod is told of")


def test_a_server_that_is_away_gets_the_drain_within_half_a_minute_of_its_return(
    tmp_path_factory: pytest.TempPathFactory, short_path: Path, apiserver: ApiServer
) -> None:
    """Its own server. It is away for as long as the agent's tries have grown to their longest pause."""
    require_kmsg()
    server = ApiServer(apiserver._scripts, tmp_path_factory.mktemp("away"))
    server.up()
    try:
        chain = OnKubernetes(short_path, server, server.node())
        with chain.running():
            server.down()
            lost(address())
            until(lambda: chain.drain() == "owed", "the drain is owed")
            server.up("--keep-state")
            until(chain.cordoned, "the node is cordoned", patience=30.0)
            until(lambda: chain.drain() == "standing", "the agent knows")
            requests = chain.log.read_text().count('"action.answered"')
            assert requests <= 12, "it is asked less and less"
    finally:
        server.down("--purge")
