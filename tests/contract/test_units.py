"""The units name what the code has: programs, paths, ports and users."""

import re
import tomllib
from pathlib import Path

from gpuguard.actuators import delegate, gpus
from gpuguard.runtime import assembly, cache, nvrx_settings
from gpuguard.store import modes

CHECKOUT = Path(__file__).resolve().parents[2]
UNITS = CHECKOUT / "systemd"


def _unit(name: str) -> dict[str, dict[str, str]]:
    """Sections and keys of a unit; of a key that stands more than once, the last value."""
    sections: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    for line in (UNITS / name).read_text().splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section[key] = value
    return sections


def test_each_daemon_has_its_unit_and_each_unit_its_daemon() -> None:
    daemons = {path.stem for path in (CHECKOUT / "gpuguard" / "daemons").glob("*.py") if not path.stem.startswith("_")}
    units = {path.stem.removeprefix("gpuguard-") for path in UNITS.glob("*.service")}
    assert units == daemons


def test_the_programs_are_those_that_are_installed() -> None:
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        scripts = tomllib.load(file)["project"]["scripts"]
    for path in UNITS.glob("*.service"):
        program = Path(_unit(path.name)["Service"]["ExecStart"].split()[0])
        assert program.parent == Path("/usr/bin")
        assert program.name in scripts


def test_the_socket_is_where_the_agent_looks_for_it() -> None:
    socket = _unit("gpuguard-actuator.socket")["Socket"]
    assert socket["ListenStream"] == delegate.SOCKET
    agent = _unit("gpuguard-agent.service")["Service"]
    assert socket["SocketGroup"] == agent["Group"]
    assert socket["SocketMode"] == "0660"


def test_the_state_directory_is_the_default_one() -> None:
    agent = _unit("gpuguard-agent.service")["Service"]
    assert Path("/var/lib") / agent["StateDirectory"] == assembly.STATE_DIR
    assert f"--state-dir {assembly.STATE_DIR}" in agent["ExecStart"]


def test_everybody_reaches_the_snapshot_and_nobody_else_the_memory() -> None:
    agent = _unit("gpuguard-agent.service")["Service"]
    assert (agent["StateDirectoryMode"], agent["UMask"]) == ("0755", "0027")
    assert cache.MODE == 0o644
    assert modes.MODE == 0o640


def test_what_every_job_may_speak_to_has_no_power() -> None:
    nvrx = _unit("gpuguard-nvrx.service")["Service"]
    assert (nvrx["CapabilityBoundingSet"], nvrx["RestrictAddressFamilies"]) == ("", "AF_UNIX")
    assert nvrx["User"] not in ("root", _unit("gpuguard-agent.service")["Service"]["User"])
    folder = Path("/run") / nvrx["RuntimeDirectory"]
    assert Path(nvrx_settings.SOCKET).parent == folder
    assert (nvrx["RuntimeDirectoryMode"], nvrx["RuntimeDirectoryPreserve"]) == ("0755", "yes")
    assert str(assembly.STATE_DIR) == cache.STATE_DIR


def test_each_unit_has_one_capability() -> None:
    agent = _unit("gpuguard-agent.service")["Service"]
    assert agent["CapabilityBoundingSet"] == agent["AmbientCapabilities"] == "CAP_SYSLOG"
    assert _unit("gpuguard-actuator.service")["Service"]["CapabilityBoundingSet"] == "CAP_KILL"


def test_the_drop_in_for_gpus_leaves_a_reset_its_time_and_opens_nvidias_devices_alone() -> None:
    gpus_settings, opened = gpus.Settings(), _unit("gpuguard-actuator.service.d/gpus.conf")["Service"]
    assert int(opened["TimeoutStopSec"]) > gpus_settings.reset_limit + gpus_settings.ask_limit
    assert opened["DeviceAllow"] == _unit("gpuguard-agent.service")["Service"]["DeviceAllow"]
    assert opened["CapabilityBoundingSet"].split() == ["CAP_KILL", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE"]
    assert "DevicePolicy" not in opened
    named = (CHECKOUT / "docs" / "way-back.md").read_text()
    assert all(f"`{key}=" in named for key in opened)


def test_the_users_of_the_units_are_made_at_installation() -> None:
    rows = [line.split() for line in (UNITS / "gpuguard.sysusers.conf").read_text().splitlines() if line[0] != "#"]
    users = {_unit(path.name)["Service"]["User"] for path in UNITS.glob("*.service")} - {"root"}
    assert {(kind, name) for kind, name, *_ in rows} == {("u", user) for user in users}


def test_the_scrape_configuration_asks_the_port_that_the_agent_opens() -> None:
    port = assembly.LISTEN.rpartition(":")[2]
    for path in (CHECKOUT / "exporters").rglob("prometheus-scrape.yaml"):
        targets = re.findall(r'targets: \["(.+)"\]', path.read_text())
        assert set(targets) == {f"localhost:{port}"}
