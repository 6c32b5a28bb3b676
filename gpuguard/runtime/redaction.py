"""Names that belong to somebody, replaced by names that belong to nobody, the same way wherever they stand.

Replaced are UUIDs of GPUs and MIG devices, serial numbers, ids of machines and boots, GUIDs and hardware addresses of
the network, the host's names, names of processes and control groups, and numbers of users; what a machine is
(addresses, versions, product names) stays. The way back is not kept.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable
from typing import Any

from gpuguard.sweeping.owners import NO_JOB

# Services that a recorded machine is judged by, as the kernel cuts their names off.
SERVICES = frozenset({
    "nv-fabricmanage", "nvidia-persiste", "nvidia-imex", "nv-hostengine", "nvidia-smi", "nvlsm", "kthreadd",
    "dcgm-exporter", "dcgmi", "gpuguard",
})  # fmt: skip
# Parts of a control group's path that say nothing of who runs there.
_PLAIN_GROUP = re.compile(
    r"(system|user|machine|app)\.slice|(kubepods|kubelet)[a-z-]*\.slice|slurmstepd\.scope|slurm|user|init\.scope|"
    r"container|docker|kubepods|kubelet|burstable|besteffort|system|nvidia-[a-z]+\.service|job_\d+|"
    r"step_(\d+(\+\d+)?|batch|extern|interactive)|task_(\d+|special)",
    re.ASCII,
)
# Those that name a user by number, or a pod or a container by an id, keep their form: without it nobody could tell
# whose the process is.
_USER_GROUP = re.compile(r"user-\d+\.slice|user@\d+\.service|uid_\d+", re.ASCII)
_POD_ID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_CONTAINER_ID = r"[0-9a-f]{64}"
_ID_GROUP = re.compile(
    rf"(?:(?:[a-z]+-)*pod(?:{_POD_ID})(?:\.slice)?(?::[a-z-]+:{_CONTAINER_ID})?|"
    rf"(?:(?:docker|libpod|nerdctl|cri-containerd|containerd|crio)-(?:conmon-)?)?{_CONTAINER_ID}(?:\.scope)?)",
    re.ASCII,
)
_GROUP_ID = re.compile(rf"{_CONTAINER_ID}|(?<=pod)(?:{_POD_ID})", re.ASCII)
_SLURM_OF_NODE = re.compile(r".+_slurmstepd\.scope")
_UNIT = re.compile(r"(gpuguard-job-|app-|tmux-spawn-|vte-spawn-)?.*(\.(?:service|scope|slice))")
_UUID = re.compile(r"\b(GPU|MIG)-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b", re.IGNORECASE | re.ASCII)
_OLD_MIG = re.compile(r"\bMIG-GPU-([0-9a-f-]{36})", re.ASCII)
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", re.ASCII)
_NAME = re.compile(r"(\bname=)([^,]+)")
_BY_ADDRESS = re.compile(r"enx[0-9a-f]{12}", re.ASCII)
_NUMBER = re.compile(r"\d+", re.ASCII)
SHORTEST_SERIAL = 8  # with letters in it
SHORTEST = 3  # a shorter name of a host would be found within words


class Redaction:
    """One recording's new names. `seed` makes them the same each time; without one nobody can make them again."""

    def __init__(self, hosts: Iterable[str] = (), seed: str | None = None) -> None:
        self._seed = seed if seed is not None else secrets.token_hex(16)
        self._serials: dict[str, str] = {}
        self._processes: dict[str, str] = {}
        self._groups: dict[str, str] = {}
        self._users: dict[str, str] = {"0": "0"}
        self._hosts = sorted({name for name in hosts if len(name) >= SHORTEST}, key=len, reverse=True)

    def _digest(self, word: str) -> bytes:
        return hashlib.sha256(f"{self._seed}/{word}".encode()).digest()

    def uuid(self, old: str) -> str:
        """Another UUID, in small letters."""
        digits = self._digest(old.lower()).hex()
        return "-".join((digits[:8], digits[8:12], f"4{digits[13:16]}", f"8{digits[17:20]}", digits[20:32]))

    def serial(self, old: str) -> str:
        """Another serial number of the same length; from now on it is replaced in texts as well."""
        # NVIDIA's are digits; those of others' boards may not be. A short word might stand anywhere in a text.
        if (len(old) >= SHORTEST_SERIAL and set(old) != {"0"}) or (old.isdigit() and set(old) != {"0"}):
            number = int.from_bytes(self._digest(old), "big") % 10 ** len(old)
            self._serials[old] = f"{number:0{len(old)}d}"
        return self._serials.get(old, old)

    def machine(self, old: str) -> str:
        """What a machine is known by, with other digits and letters; where it is long, it is replaced in texts too."""
        stream = b"".join(self._digest(f"{old}/{n}") for n in range(1 + len(old) // 32))
        new = "".join(_instead(char, byte) for char, byte in zip(old, stream, strict=False))
        if len(old) >= SHORTEST_SERIAL:
            self._serials[old] = new
        return new

    def guid(self, old: str) -> str:
        """Another GUID of a node of a fabric, in the same form; that of none stays."""
        if not old.strip("0:"):
            return old
        digits = self._digest(old.lower()).hex()
        return ":".join((digits[:4], digits[4:8], digits[8:12], digits[12:16]))

    def interface(self, old: str) -> str:
        """The name of a network interface; one that is named by its hardware address gets another address."""
        return f"enx{self._digest(old).hex()[:12]}" if _BY_ADDRESS.fullmatch(old) else old

    def process(self, old: str) -> str:
        """`process-N`; a service of the driver's keeps its name."""
        if old in SERVICES:
            return old
        return self._processes.setdefault(old, f"process-{len(self._processes) + 1}")

    def user(self, old: str) -> str:
        """Another number; root stays root."""
        return self._users.setdefault(old, str(20000 + len(self._users)))

    def group(self, old: str) -> str:
        """The path of a control group with the same depth; what says who runs there is replaced."""
        return "/".join(self._group_part(part) for part in old.split("/"))

    def _group_part(self, part: str) -> str:
        if _USER_GROUP.fullmatch(part):
            return _NUMBER.sub(lambda match: self.user(match[0]), part)
        if not part or _PLAIN_GROUP.fullmatch(part):
            return part
        if _ID_GROUP.fullmatch(part):
            return _GROUP_ID.sub(self._group_id, part)
        if _SLURM_OF_NODE.fullmatch(part):
            return "gpu-node_slurmstepd.scope"
        if NO_JOB.fullmatch(part) and "@" not in part:
            return part  # a service that every such node has
        unit = _UNIT.fullmatch(part)
        before, after = (unit[1] or "", unit[2]) if unit else ("", "")
        return self._groups.setdefault(part, f"{before}group-{len(self._groups) + 1}{after}")

    def _group_id(self, match: "re.Match[str]") -> str:
        """Another id with as many digits and the same strokes between them."""
        digits = iter(self._digest(match[0].replace("_", "-")).hex())
        return "".join(next(digits) if char not in "-_" else char for char in match[0])

    def text(self, old: str) -> str:
        """A line or a whole file with every such name replaced."""
        new = _OLD_MIG.sub(lambda match: f"MIG-GPU-{self.uuid(match[1])}", old)
        new = _UUID.sub(lambda match: f"{match[1]}-{self.uuid(match[2])}", new)
        for serial, instead in self._serials.items():
            new = new.replace(serial, instead)
        for host in self._hosts:
            new = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "gpu-node", new)
        new = _ADDRESS.sub(self._network, new)
        return _NAME.sub(lambda match: match[1] + self.process(match[2]), new)

    def _network(self, match: "re.Match[str]") -> str:
        """An address of the network is replaced by one that documentation may use; a version stays what it is."""
        parts = [int(part) for part in match[0].split(".")]
        private = parts[0] in (10, 127) or parts[:2] == [192, 168] or (parts[0] == 172 and 16 <= parts[1] < 32)
        return "192.0.2.1" if private and max(parts) < 256 else match[0]

    def tree(self, old: Any) -> Any:
        """Nested JSON with its texts replaced. Any: it has the shape of what was given."""
        if isinstance(old, str):
            return self.text(old)
        if isinstance(old, dict):
            return {key: self.tree(value) for key, value in old.items()}
        if isinstance(old, list):
            return [self.tree(value) for value in old]
        return old


def _instead(char: str, byte: int) -> str:
    """Another digit for a digit, another letter for a letter: those of a hexadecimal number stay within its own."""
    for some in ("0123456789", "abcdef", "ABCDEF", "ghijklmnopqrstuvwxyz", "GHIJKLMNOPQRSTUVWXYZ"):
        if char in some:
            return some[byte % len(some)]
    return char
