"""What agent and actuator cost a node in memory with the Kubernetes adapter on, without GPUs.

Both are the real processes against a real API server: the agent with every default source, watching the node's pods;
the actuator after a drain and a release, so that all it needs is loaded. Memory is PSS of all processes together.
Prints one JSON object; without the scripts that start an API server it says so and measures nothing.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.idle import pss_mib
from gpuguard.web.access import from_kubeconfig
from gpuguard.web.kubernetes import Api

ASKED_MIB = 65.0
NODE = "bench-node"
CONFIG = """\
[policy]
mode = "drain"
[sources.kubernetes]
kubeconfig = "{kubeconfig}"
node = "{node}"
[actuators.delegate]
socket = "{folder}/a.sock"
[actuator]
target = "kubernetes"
socket = "{folder}/a.sock"
allow_users = []
[actuators.kubernetes]
node = "{node}"
kubeconfig = "{kubeconfig}"
"""


def scripts() -> Path | None:
    """The folder with the API server's starters, where there is one."""
    checkout = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("GPUGUARD_TEST_DATA") or checkout.parent / "shared") / "k8s"
    return folder if (folder / "apiserver-up").exists() else None


def children(pid: int) -> list[int]:
    """What a process started, and what that started."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found[1:]


def node_made(kubeconfig: str) -> None:
    """A Node that is ready, with 30 pods on it."""
    api, until = Api(from_kubeconfig(Path(kubeconfig))), time.monotonic() + 60.0
    api.post("/api/v1/nodes", {"kind": "Node", "metadata": {"name": NODE}}, dict, until)
    api.patch(f"/api/v1/nodes/{NODE}", {"spec": {"taints": None}}, dict, until)
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}}
    api.patch(f"/api/v1/nodes/{NODE}/status", ready, dict, until, by="strategic")
    for number in range(30):
        spec = {"nodeName": NODE, "containers": [{"name": "c", "image": "none"}]}
        pod = {"kind": "Pod", "metadata": {"name": f"bench-{number}"}, "spec": spec}
        api.post("/api/v1/namespaces/default/pods", pod, dict, until)
    api.close()


def measured(folder: Path, kubeconfig: str, seconds: float) -> dict[str, object]:
    """PSS of both processes and their children."""
    config = folder / "config.toml"
    config.write_text(CONFIG.format(folder=folder, node=NODE, kubeconfig=kubeconfig))
    options, state = ["--config", str(config)], ["--state-dir", str(folder / "state")]
    gpuguard = [sys.executable, "-m", "gpuguard.cli"]
    commands = (
        [sys.executable, "-m", "gpuguard.daemons.actuator", *options],
        [*gpuguard, "agent", *options, *state, "--listen", "127.0.0.1:0"],
    )
    with (folder / "log").open("wb") as log:
        processes = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]
    try:
        time.sleep(8.0)
        spoken = [
            subprocess.run([*gpuguard, *words, *options, *state], capture_output=True, text=True, check=False)
            for words in (["drain", "--reason", "bench", "--yes"], ["resume", "--yes"])
        ]
        sys.stderr.write(f"kubernetes_idle: measuring after {seconds:.0f} s\n")
        time.sleep(seconds)
        actuator, agent = (sum(pss_mib(pid) for pid in (p.pid, *children(p.pid))) for p in processes)
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(20)
    return {
        "agent_pss_mib": round(agent, 1),
        "actuator_pss_mib": round(actuator, 1),
        "pss_mib": round(agent + actuator, 1),
        "drained_and_released": [done.returncode for done in spoken] == [0, 0],
        "asked": {"pss_mib": ASKED_MIB},
    }


def main() -> int:
    """0 measured and within what is asked, or nothing to measure with; 1 beyond."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=65.0, help="how long to be idle before the look")
    args = parser.parse_args()
    start = scripts()
    if start is None:
        print(json.dumps({"left_out": "no API server: set GPUGUARD_TEST_DATA to the folder that holds k8s/"}))
        return 0
    with tempfile.TemporaryDirectory(prefix="gg-k8s-", dir="/tmp") as name:
        folder, server = Path(name), Path(name) / "server"
        subprocess.run([start / "apiserver-up", server], check=True, stdout=subprocess.DEVNULL)
        try:
            lines = (server / "env").read_text().splitlines()
            environ = dict(shlex.split(line)[1].split("=", 1) for line in lines if line.startswith("export "))
            node_made(environ["KUBECONFIG"])
            found = measured(folder, environ["KUBECONFIG"], args.seconds)
        finally:
            subprocess.run([start / "apiserver-down", "--purge", server], check=True, stdout=subprocess.DEVNULL)
    print(json.dumps(found))
    return 0 if float(str(found["pss_mib"])) <= ASKED_MIB and found["drained_and_released"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
