"""The units under a real systemd that boots as PID 1 of a small machine of its own."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import systemd
from tests.support.fake_nvml import FakeNvml, lacking
from tests.support.machines import machine as recorded
from tests.support.require import require

pytestmark = pytest.mark.systemd

CHECKOUT = Path(__file__).resolve().parents[2]
AGENT = "gpuguard-agent.service"
ACTUATOR = "gpuguard-actuator.service"
SOCKET = "gpuguard-actuator.socket"
NVRX = "gpuguard-nvrx.service"
UNITS = (AGENT, ACTUATOR, SOCKET, NVRX)
CAP_SYSLOG = 1 << 34  # linux/capability.h

# Runs inside the agent's sandbox before the agent does, and leaves what it could do.
PROBE = r"""
import ctypes, json, mmap, os, sys

def tried(what, *arguments):
    try:
        what(*arguments)
    except OSError as error:
        return error.strerror
    return "done"

def write(path):
    with open(path, "w") as file:
        file.write("x")
    os.unlink(path)

def unshare():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) != 0:  # CLONE_NEWUSER
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

places = ["/etc/probe", "/usr/bin/probe", "/var/lib/probe", "/run/probe", "/opt/probe", "/var/lib/gpuguard/probe"]
found = {path: tried(write, path) for path in places}
found["read kmsg"] = tried(os.open, "/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
found["write kmsg"] = tried(os.open, "/dev/kmsg", os.O_WRONLY)
found["other device"] = tried(os.open, "/dev/mem", os.O_RDONLY)
found["writable code"] = tried(mmap.mmap, -1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
found["new namespace"] = tried(unshare)
found["root's home"] = tried(os.listdir, "/root")
found["another's process"] = tried(os.open, "/proc/1/stat", os.O_RDONLY)
found["uid"] = os.getuid()
status = dict(line.rstrip("\n").split(":\t", 1) for line in open("/proc/self/status") if ":\t" in line)
found["capabilities"] = int(status["CapEff"], 16)
found["no new privileges"] = status["NoNewPrivs"]
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""

# What the agent's side of the socket does, as a program of its own.
ASK = """
from gpuguard.actuators.delegate import Delegate, Settings
report = Delegate(Settings()).read_state()
print(report.target, report.error)
"""


# What NVRx does, as a program of its own that any user may run.
ASK_NVRX = """
from tests.support.nvhcd import asked, takes_the_node
response = asked("/run/gpuguard-nvrx/nvrx.sock")
print(takes_the_node(response), response.output)
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[systemd.Machine]:
    """One small machine with the units as they ship; drop-ins only shorten the waits."""
    why = systemd.missing()
    require("systemd", not why, why)
    with systemd.machine(tmp_path_factory.mktemp("systemd") / "machine") as box:
        for unit in UNITS:
            box.lay(f"/etc/systemd/system/{unit}", (CHECKOUT / "systemd" / unit).read_text())
        box.lay("/usr/lib/sysusers.d/gpuguard.conf", (CHECKOUT / "systemd" / "gpuguard.sysusers.conf").read_text())
        box.lay("/etc/gpuguard/config.toml", "[actuator]\nidle_exit = 1.0\n")
        box.lay(f"/etc/systemd/system/{AGENT}.d/fast.conf", "[Service]\nWatchdogSec=4\nRestartSec=200ms\n")
        box.lay(
            f"/etc/systemd/system/{AGENT}.d/probe.conf",
            "[Service]\nExecStartPre=/usr/bin/gpuguard-probe /var/lib/gpuguard/probe.json\n",
        )
        _lay_nvml(box)
        box.lay("/opt/probe.py", PROBE)
        box.lay("/opt/ask.py", ASK)
        box.lay("/opt/ask_nvrx.py", ASK_NVRX)
        box.lay("/usr/bin/gpuguard-probe", systemd.python_program("/opt/probe.py"), mode=0o755)
        box.lay("/usr/bin/gpuguard-ask", systemd.python_program("/opt/ask.py"), mode=0o755)
        box.lay("/usr/bin/gpuguard-ask-nvrx", systemd.python_program("/opt/ask_nvrx.py"), mode=0o755)
        box.boot()
        yield box


def _lay_nvml(box: systemd.Machine) -> None:
    """In the machine stands a driver's library that answers for eight GPUs, where there is a compiler to make it."""
    if lacking():
        return
    with FakeNvml(recorded("h100x8")) as nvml:
        env = nvml.env({})
        library = Path(env["LD_LIBRARY_PATH"]) / "libnvidia-ml.so.1"
        box.lay("/opt/nvml/libnvidia-ml.so.1", library.read_bytes())
        box.lay("/opt/nvml/answers.txt", Path(env["FAKE_NVML_FILE"]).read_bytes())
        box.lay("/var/nvml/control", Path(env["FAKE_NVML_CONTROL"]).read_bytes(), mode=0o666)
    box.lay(
        f"/etc/systemd/system/{AGENT}.d/nvml.conf",
        "[Service]\nEnvironment=FAKE_NVML_FILE=/opt/nvml/answers.txt FAKE_NVML_CONTROL=/var/nvml/control\n"
        "ReadWritePaths=/var/nvml\n",
    )


@pytest.fixture
def agent(machine: systemd.Machine) -> Iterator[systemd.Machine]:
    """The machine with the agent running in it."""
    started = machine.systemctl("start", AGENT)
    assert started.returncode == 0, started.stderr + machine.console()[-4000:]
    yield machine
    machine.systemctl("stop", AGENT, ACTUATOR)


def _restarted(box: systemd.Machine, old: int) -> None:
    box.wait_until(
        "the agent to come back",
        lambda: box.show(AGENT, "ActiveState") == "active" and box.main_pid(AGENT) not in (0, old),
    )


def test_nothing_outlives_the_machine(tmp_path: Path) -> None:
    why = systemd.missing()
    require("systemd", not why, why)
    laid = [
        Path("/usr/lib/sysusers.d/gpuguard-passing.conf"),
        Path("/opt/gpuguard-passing"),
        Path("/etc/gpuguard-passing"),
    ]
    with systemd.machine(tmp_path / "machine") as box:
        box.lay(str(laid[0]), "u gpuguard-passing - - / /usr/sbin/nologin\n")
        for path in laid[1:]:
            box.lay(str(path), "made for one small machine\n")
        box.boot()
        assert box.run("id", "gpuguard-passing").returncode == 0, box.console()
        assert box.run("cat", *map(str, laid)).returncode == 0
    assert [path for path in laid if path.exists()] == []
    assert subprocess.run(["id", "gpuguard-passing"], capture_output=True, check=False).returncode != 0
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def test_a_file_that_would_stay_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="would outlive the machine"):
        systemd.Machine(tmp_path / "machine").lay("/usr/lib/gpuguard.conf", "")


def test_verify_is_silent(machine: systemd.Machine) -> None:
    done = machine.run("systemd-analyze", "verify", *(f"/etc/systemd/system/{unit}" for unit in UNITS))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_verify_is_silent_with_the_drop_in_for_gpus(machine: systemd.Machine) -> None:
    drop_in = (CHECKOUT / "systemd" / f"{ACTUATOR}.d" / "gpus.conf").read_text()
    for name, text in ((ACTUATOR, (CHECKOUT / "systemd" / ACTUATOR).read_text()), (f"{ACTUATOR}.d/gpus.conf", drop_in)):
        machine.lay(f"/opt/verified/{name}", text)
    done = machine.run("systemd-analyze", "verify", f"/opt/verified/{ACTUATOR}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("unit", "most"), [(AGENT, 3.0), (ACTUATOR, 4.5), (NVRX, 1.5)])
def test_exposure(unit: str, most: float) -> None:
    require("systemd-analyze", shutil.which("systemd-analyze") is not None, "apt-get install systemd")
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(CHECKOUT / "systemd" / unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert level is not None, done.stdout + done.stderr
    assert float(level[1]) <= most


def test_the_agent_says_ready_as_a_user_of_its_own(agent: systemd.Machine) -> None:
    """`systemctl start` of a notify unit returns only after READY=1."""
    assert agent.show(AGENT, "ActiveState") == "active"
    assert agent.show(AGENT, "StatusText") != ""
    user = agent.run("ps", "-o", "user=,args=", "-p", str(agent.main_pid(AGENT))).stdout.split()
    assert user[0] == "gpuguard"
    assert "agent" in user


def test_metrics_answer_on_loopback(agent: systemd.Machine) -> None:
    text = agent.run(
        "/opt/box/python/bin/python3",
        "-c",
        "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:9818/metrics').read().decode())",
    ).stdout
    assert re.search(r'^gpuguard_source_up\{source="kmsg"\} 1', text, flags=re.MULTILINE), text


def test_the_gpus_are_seen_from_inside_the_sandbox(agent: systemd.Machine) -> None:
    """NVML in its child process, as a user without power."""
    require("gcc", not lacking(), lacking())
    asked = json.loads(agent.run("/usr/bin/gpuguard", "gpus", "--json").stdout)
    assert asked["from"] == "agent"
    assert [gpu["readings"]["gpu_index"] for gpu in asked["gpus"]] == list(range(8))
    assert all(gpu["readings"]["sm_active_ratio"] > 0.5 for gpu in asked["gpus"])
    snapshot = json.loads(agent.run("cat", "/var/lib/gpuguard/snapshot.json").stdout)
    assert {s["name"]: s["level"] for s in snapshot["shell"]["sources"]}["nvml"] == "watching"


def test_a_stopped_agent_takes_its_children_with_it(agent: systemd.Machine) -> None:
    require("gcc", not lacking(), lacking())
    child = agent.run("pgrep", "-f", "gpuguard.sources.nvml.child").stdout.split()
    assert len(child) == 1
    agent.systemctl("stop", AGENT)
    assert agent.show(AGENT, "Result") == "success"
    assert agent.run("pgrep", "-f", "gpuguard.sources.nvml.child").stdout == ""


def test_another_user_may_ask_and_may_not_hold_its_locks(agent: systemd.Machine) -> None:
    asked = agent.run("runuser", "-u", "nobody", "--", "/usr/bin/gpuguard", "check", "--json")
    assert json.loads(asked.stdout)["from"] == "cache", asked.stdout + asked.stderr
    closed = ("agent.lock", "ballast", "gpuguard.db", "gpuguard.db-wal", "gpuguard.db-shm")
    for name in closed:
        opened = agent.run("runuser", "-u", "nobody", "--", "cat", f"/var/lib/gpuguard/{name}")
        assert "Permission denied" in opened.stderr, name
    assert agent.run("stat", "-c", "%a", "/var/lib/gpuguard/snapshot.json").stdout == "644\n"


def test_a_hung_agent_is_restarted_by_the_watchdog(agent: systemd.Machine) -> None:
    old = agent.main_pid(AGENT)
    agent.run("kill", "-STOP", str(old))
    _restarted(agent, old)
    assert "Watchdog timeout" in agent.console()


def test_a_killed_agent_comes_back(agent: systemd.Machine) -> None:
    old = agent.main_pid(AGENT)
    agent.run("kill", "-KILL", str(old))
    _restarted(agent, old)


def test_a_stopped_agent_ends_cleanly(agent: systemd.Machine) -> None:
    agent.systemctl("stop", AGENT)
    assert agent.show(AGENT, "Result") == "success"
    assert agent.show(AGENT, "ExecMainStatus") == "0"


def test_the_sandbox_holds(agent: systemd.Machine) -> None:
    found = json.loads(agent.run("cat", "/var/lib/gpuguard/probe.json").stdout)
    # Whether the driver's services run and what hangs in it is seen in the processes of others.
    allowed = {"/var/lib/gpuguard/probe", "read kmsg", "another's process"}
    assert {what for what, result in found.items() if result == "done"} == allowed
    assert found["uid"] != 0
    assert found["capabilities"] == CAP_SYSLOG
    assert found["no new privileges"] == "1"


def test_without_the_sandbox_the_probe_may_do_more(machine: systemd.Machine) -> None:
    """So what the test above sees refused is the sandbox's doing."""
    done = machine.run("/usr/bin/gpuguard-probe", "/tmp/free.json")
    assert done.returncode == 0, done.stderr
    found = json.loads(machine.run("cat", "/tmp/free.json").stdout)
    for what in ("/etc/probe", "/usr/bin/probe", "/var/lib/probe", "/run/probe", "write kmsg", "writable code"):
        assert found[what] == "done"


def test_the_actuator_runs_only_while_there_is_work(machine: systemd.Machine) -> None:
    machine.systemctl("start", SOCKET)
    machine.wait_for("the actuator to be idle", ACTUATOR, "ActiveState", "inactive")
    for _ in range(2):
        asked = machine.run("runuser", "-u", "gpuguard", "--", "/usr/bin/gpuguard-ask")
        assert asked.stdout.startswith("dry_run "), asked.stdout + asked.stderr
        assert machine.show(ACTUATOR, "ActiveState") == "active"
        machine.wait_for("the actuator to leave", ACTUATOR, "ActiveState", "inactive")
        assert machine.show(ACTUATOR, "Result") == "success"
    assert machine.show(SOCKET, "ActiveState") == "active"


def test_the_actuator_is_closed_to_other_users(machine: systemd.Machine) -> None:
    machine.systemctl("start", SOCKET)
    asked = machine.run("runuser", "-u", "nobody", "--", "/usr/bin/gpuguard-ask")
    assert "no right to write" in asked.stdout
    machine.wait_for("nothing to have started", ACTUATOR, "ActiveState", "inactive")


def test_the_one_liner_of_the_docs(machine: systemd.Machine) -> None:
    """`systemd-run` as docs/systemd.md prints it, word for word."""
    text = (CHECKOUT / "docs" / "systemd.md").read_text()
    block = re.search(r"```sh\n(systemd-run .*?)```", text, flags=re.DOTALL)
    assert block is not None
    require("dbus", machine.systemctl("cat", "dbus.socket").returncode == 0, "apt-get install dbus")
    done = machine.run("sh", "-c", block[1])
    assert done.returncode == 0, done.stderr + machine.console()[-4000:]
    assert machine.show("gpuguard-try.service", "ActiveState") == "active"
    assert machine.systemctl("stop", "gpuguard-try.service").returncode == 0


def test_nvrx_is_answered_out_of_a_sandbox_without_power(agent: systemd.Machine) -> None:
    """From the agent's cache, to a user of whom gpuguard knows nothing; its folder outlives it."""
    started = agent.systemctl("start", NVRX)
    assert started.returncode == 0, started.stderr + agent.console()[-4000:]
    asked = agent.run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/gpuguard-ask-nvrx")
    healthy, _, told = asked.stdout.partition(" ")
    assert healthy == "True", asked.stdout + asked.stderr + agent.console()[-4000:]
    snapshot = json.loads(agent.run("cat", "/var/lib/gpuguard/snapshot.json").stdout)
    assert json.loads(told)["message"].startswith(snapshot["line"]), told
    assert json.loads(told)["age_s"] is not None
    pid = agent.main_pid(NVRX)
    status = dict(
        line.split(":\t", 1) for line in agent.run("cat", f"/proc/{pid}/status").stdout.splitlines() if ":\t" in line
    )
    assert (status["CapEff"].strip("0"), status["CapBnd"].strip("0"), status["NoNewPrivs"]) == ("", "", "1")
    assert agent.show(NVRX, "User") == "gpuguard-nvrx"
    folder = agent.run("stat", "--format=%i", "/run/gpuguard-nvrx/.").stdout
    agent.systemctl("stop", NVRX)
    assert agent.show(NVRX, "Result") == "success"
    assert agent.run("ls", "/run/gpuguard-nvrx/.").stdout == ""
    assert agent.run("stat", "--format=%i", "/run/gpuguard-nvrx/.").stdout == folder
