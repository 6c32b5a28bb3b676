"""A real systemd as PID 1 of a small machine of its own, made of namespaces over this machine's files.

The machine sees this root file system through overlays, so that users, units and state it makes vanish with it:
LAYERS are layers over our folders, `/run`, `/tmp` and the network are its own, and its control group is a leaf of
ours. Nothing outlives `Machine.stop`.
"""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SYSTEMD = "/lib/systemd/systemd"
BOOT_LIMIT = 60.0  # seconds; it takes under one where the machine is not busy
# What a service with default dependencies, the journal and systemd-run need.
UNITS = (
    "basic.target shutdown.target umount.target final.target sockets.target timers.target paths.target slices.target "
    "local-fs.target local-fs-pre.target network.target multi-user.target exit.target systemd-exit.service "
    "systemd-journald.socket systemd-journald-dev-log.socket systemd-journald.service dbus.socket dbus.service"
)

# Where a file may be laid: a layer over this machine's folder, gone with the small machine.
LAYERS = ("etc", "var", "usr/bin", "usr/lib/sysusers.d", "opt")

# Run by sh in the new namespaces. $1: the machine's folder. Layers come first, the kernel's own file systems last.
_BOOT = r"""
set -eu
box=$1
mount --make-rprivate /
mount -t tmpfs -o mode=0755 layers "$box/layers"
for place in $GPUGUARD_BOX_LAYERS; do
    upper="$box/layers/upper/$place"; work="$box/layers/work/$place"
    mkdir -p "$upper" "$work"
    mount -t overlay overlay -o "lowerdir=/$place,upperdir=$upper,workdir=$work" "/$place"
done
mkdir -p /opt/box/python /opt/box/site /opt/box/source /etc/systemd/system
mount --bind "$GPUGUARD_BOX_PYTHON" /opt/box/python
mount --bind "$GPUGUARD_BOX_SITE" /opt/box/site
mount --bind "$GPUGUARD_BOX_SOURCE" /opt/box/source
# Of this machine's units only the harmless few go along: no udev, no sysctl, nothing that reaches the kernel.
rm -rf /etc/systemd/system/*
mkdir -p "$box/layers/units"
for unit in $GPUGUARD_BOX_UNITS; do
    [ ! -e "/lib/systemd/system/$unit" ] || cp -a "/lib/systemd/system/$unit" "$box/layers/units/"
done
mount --bind "$box/layers/units" /lib/systemd/system
cp -a "$box/files/." /
mount -t tmpfs -o mode=0755 run /run
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t proc proc /proc
umount -R /sys/fs/cgroup 2>/dev/null || true
mkdir -p /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
systemd-sysusers
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=gpuguard-test \
    "$GPUGUARD_BOX_SYSTEMD" --system --unit=box.target --log-target=journal --log-level=info --show-status=no
"""

# Two machines of one test run may stand at once.
_MACHINES = itertools.count()
_PROGRAM = """#!/bin/sh
# A Python program over the checkout's own files, as an installed one would run.
export PYTHONHOME=/opt/box/python LD_LIBRARY_PATH=/opt/box/python/lib:/opt/nvml PYTHONPATH=/opt/box/source:/opt/box/site
export PYTHONDONTWRITEBYTECODE=1
exec /opt/box/python/bin/python3 {what} "$@"
"""

_BOX_TARGET = """[Unit]
Description=A small machine for gpuguard's tests
Requires=sysinit.target
Wants=systemd-journald.socket systemd-journald-dev-log.socket systemd-journald.service dbus.socket
After=sysinit.target systemd-journald.service dbus.socket
AllowIsolate=yes
"""

_SYSINIT = """[Unit]
Description=Nothing of the big machine's start is wanted in the small one
DefaultDependencies=no
"""


def python_program(file: str) -> str:
    """A shell script that runs the Python file inside a machine, with gpuguard importable."""
    return _PROGRAM.format(what=file)


def missing() -> str:
    """What keeps this machine from booting a small one; '' when nothing does."""
    if os.geteuid() != 0:
        return "only root may make the namespaces"
    for program in ("unshare", "nsenter", "mount", "systemctl", "systemd-sysusers"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if not Path(SYSTEMD).exists():
        return f"there is no {SYSTEMD}"
    if "cgroup2" not in Path("/proc/filesystems").read_text():
        return "the kernel has no control groups of version 2"
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--cgroup", "true"], capture_output=True, text=True, check=False
    )
    return "" if tried.returncode == 0 else f"namespaces cannot be made: {tried.stderr.strip()}"


class Machine:
    """One booted small machine. Files laid with `lay` before `boot` stand in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = folder / "files"
        self.files.mkdir(parents=True)
        (folder / "layers").mkdir()
        self._parent: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._group: Path | None = None
        self._hierarchy = folder / "cgroup2"
        self.lay("/etc/systemd/system/box.target", _BOX_TARGET)
        self.lay("/etc/systemd/system/sysinit.target", _SYSINIT)
        self.lay("/usr/bin/gpuguard", _PROGRAM.format(what="-m gpuguard.cli"), mode=0o755)
        for daemon in ("actuator", "nvrx"):
            program = _PROGRAM.format(what=f"-m gpuguard.daemons.{daemon}")
            self.lay(f"/usr/bin/gpuguard-{daemon}", program, mode=0o755)

    def lay(self, path: str, text: str | bytes, mode: int = 0o644) -> None:
        """Puts a file into the machine that will boot.

        Raises  ValueError for a place that is no layer: the file would land on this machine, and stay
        """
        if not path.startswith(tuple(f"/{layer}/" for layer in LAYERS)):
            raise ValueError(f"{path} would outlive the machine; layers are {', '.join(LAYERS)}")
        place = self.files / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text if isinstance(text, bytes) else text.encode())
        place.chmod(mode)

    def boot(self) -> None:
        """The machine is up: its systemd answers.

        Raises  RuntimeError with the console's text when it does not come up
        """
        self._hierarchy.mkdir()
        _call("mount", "-t", "cgroup2", "cgroup2", str(self._hierarchy))
        self._group = self._hierarchy / f"gpuguard-test-{os.getpid()}-{next(_MACHINES)}"
        self._group.mkdir()
        group = self._group
        environment = os.environ | {
            "GPUGUARD_BOX_LAYERS": " ".join(LAYERS),
            "GPUGUARD_BOX_PYTHON": sys.base_prefix,
            "GPUGUARD_BOX_SITE": sysconfig.get_paths()["purelib"],
            "GPUGUARD_BOX_SOURCE": str(CHECKOUT),
            "GPUGUARD_BOX_SYSTEMD": SYSTEMD,
            "GPUGUARD_BOX_UNITS": UNITS,
        }
        # The shell joins the leaf group first; --cgroup then makes that leaf the root of all the machine can see.
        command = ["unshare", "--mount", "--uts", "--ipc", "--net", "--cgroup", "--pid", "--fork", "--kill-child=KILL"]
        command += ["sh", "-c", _BOOT, "boot", str(self.folder)]
        join = f'echo $$ > "{group}/cgroup.procs" && exec "$@"'
        with (self.folder / "console").open("wb") as console:
            self._parent = subprocess.Popen(
                ["sh", "-c", join, "join", *command],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=environment,
                start_new_session=True,
            )
        self.wait_until("the machine to boot", self._is_up, BOOT_LIMIT)

    def _is_up(self) -> bool:
        assert self._parent is not None
        if self._parent.poll() is not None:
            raise RuntimeError(f"the small machine did not boot:\n{self.console()}")
        children = Path(f"/proc/{self._parent.pid}/task/{self._parent.pid}/children").read_text().split()
        if not children:
            return False
        self._pid = int(children[0])
        if Path(f"/proc/{self._pid}/comm").read_text().strip() != "systemd":
            return False
        return self.systemctl("is-active", "box.target").stdout.strip() == "active"

    def stop(self) -> None:
        """Nothing of the machine is left: its processes, its mounts, its control groups."""
        if self._parent is not None:
            # PID 1 of a namespace takes all the others with it.
            if self._pid and self._parent.poll() is None:
                os.kill(self._pid, signal.SIGKILL)
            else:
                self._parent.kill()
            self._parent.wait()
        if self._group is not None:
            limit = time.monotonic() + 10.0
            while _procs(self._group) and time.monotonic() < limit:
                time.sleep(0.02)
            for place in sorted(self._group.rglob("*"), key=lambda path: len(path.parts), reverse=True):
                if place.is_dir():
                    place.rmdir()
            self._group.rmdir()
            _call("umount", str(self._hierarchy))

    def console(self) -> str:
        """What the boot, systemd and the units said so far."""
        said = (self.folder / "console").read_text(errors="replace")
        if self._pid and Path(f"/proc/{self._pid}").exists():
            said += self.run("journalctl", "--no-pager", "--quiet", "--output=short-monotonic").stdout
        return said

    def run(self, *command: str, limit: float = 60.0) -> subprocess.CompletedProcess[str]:
        """The command's result, run inside the machine as root."""
        enter = ["nsenter", "--target", str(self._pid), "--mount", "--root", "--wd=/", "--pid", "--uts"]
        enter += ["--ipc", "--net", "--cgroup", "--"]
        return subprocess.run(
            [*enter, *command], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=limit, check=False
        )

    def systemctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The result of systemctl inside the machine."""
        return self.run("systemctl", *arguments)

    def show(self, unit: str, name: str) -> str:
        """One property of a unit, as systemd prints it."""
        return self.systemctl("show", "--value", f"--property={name}", unit).stdout.strip()

    def main_pid(self, unit: str) -> int:
        """The main process of a unit, numbered as inside the machine; 0 when there is none."""
        return int(self.show(unit, "MainPID") or 0)

    def wait_for(self, what: str, unit: str, name: str, value: str, limit: float = 60.0) -> None:
        """Returns once the unit's property has the value.

        Raises  RuntimeError naming `what`, with the console's end, after `limit` seconds
        """
        self.wait_until(what, lambda: self.show(unit, name) == value, limit)

    def wait_until(self, what: str, asked: Callable[[], bool], limit: float = 60.0) -> None:
        """Returns once the answer is yes.

        Raises  RuntimeError naming `what`, with the console's end, after `limit` seconds
        """
        end = time.monotonic() + limit
        while not asked():
            if time.monotonic() > end:
                raise RuntimeError(
                    f"waited {limit:.0f} s in vain for {what}; the console ends:\n{self.console()[-4000:]}"
                )
            time.sleep(0.05)


def _procs(group: Path) -> bool:
    return any((place / "cgroup.procs").read_text().strip() for place in (group, *group.rglob("*")) if place.is_dir())


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """A machine that is stopped whatever happens."""
    made = Machine(folder)
    try:
        yield made
    finally:
        made.stop()
