"""This node's drain in Kubernetes: cordon, taint, annotation and label in one write; condition and Event beside it.

Here stand the settings alone: the agent checks them for every site, and TLS and HTTP, which the actuator itself needs,
would cost each agent several MiB.
"""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from gpuguard.errors import ConfigInvalid
from gpuguard.model.units import Seconds

if TYPE_CHECKING:
    from gpuguard.actuators.kubernetes.actuator import Kubernetes

# RFC 1123 subdomain: what Kubernetes takes as the name of a node.
NODE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII)
NODE_NAME_MOST: Final = 253
NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
# GPU feature discovery and the GPU operator set this label on every node that has one.
GPU_NODES: Final = "nvidia.com/gpu.present=true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How Kubernetes' API server is reached and what may be asked of it; empty texts mean: find out.

    `node` is the name of this machine's Node; without it NODE_NAME, which the DaemonSet sets, then the host name.
    """

    node: str = ""
    kubeconfig: str = ""  # a file; without it the pod's service account, then KUBECONFIG
    context: str = ""  # which context of the kubeconfig, by itself its current one
    deadline: Seconds = Seconds(5.0)  # for a wish with all its questions to the API server
    # "severe" lets pods be asked to leave after a severe fault. `evict_pods` in [policy] wishes it: both are needed.
    evict: Literal["never", "severe"] = "never"
    evict_deadline: Seconds = Seconds(3600.0)  # pods that are left after this long are a person's affair
    gpu_nodes: str = GPU_NODES  # the label selector that finds every node with GPUs, to count the fleet
    # Verdicts on single GPUs for DRA: "inform" taints their devices with effect None, "enforce" keeps pods away too.
    device_taints: Literal["off", "inform", "enforce"] = "off"
    namespace: str = "gpuguard"  # where the Lease with the fleet's book lies

    def __post_init__(self) -> None:
        if self.node and not is_node_name(self.node):
            raise ValueError("node: must be the name of one Node")
        if self.kubeconfig and not self.kubeconfig.startswith("/"):
            raise ValueError("kubeconfig: must be an absolute path")
        if not 0.2 <= self.deadline <= 30.0:
            raise ValueError("deadline: must lie between 0.2 and 30 seconds")
        if self.evict_deadline < 1.0:
            raise ValueError("evict_deadline: must be at least 1 second")
        if not self.gpu_nodes.strip():
            raise ValueError("gpu_nodes: must be a label selector, as in nvidia.com/gpu.present=true")
        if not NAMESPACE.fullmatch(self.namespace):
            raise ValueError("namespace: must be the name of one namespace")


def is_node_name(name: str) -> bool:
    """Whether Kubernetes could have a node of that name."""
    return len(name) <= NODE_NAME_MOST and NODE_NAME.fullmatch(name) is not None


def own_name(settings: Settings, environ: Mapping[str, str]) -> str:
    """The name of this machine's Node.

    Raises  ConfigInvalid when it cannot be one
    """
    # The kubelet takes the host name in lower case where nobody gave it another (pkg/util/node, GetHostname).
    name = settings.node or environ.get("NODE_NAME", "") or socket.gethostname().strip().lower()
    if not is_node_name(name):
        raise ConfigInvalid((f"[actuators.kubernetes] node: {name!r} cannot be the name of a Node; set it",))
    return name


def build(settings: Settings) -> "Kubernetes":
    """The actuator of this node; raises ConfigInvalid when its name cannot be one of Kubernetes'."""
    from gpuguard.actuators.kubernetes.actuator import Kubernetes

    return Kubernetes(settings, os.environ)
