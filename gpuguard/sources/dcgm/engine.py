"""A host engine that runs already, asked through a child process with a deadline.

A child that does not answer is abandoned; while it has not gone, no other one is started.
"""

import os
import socket
import sys
from pathlib import Path

import msgspec

from gpuguard.child.process import Child, Ended
from gpuguard.errors import NotUnderstood, ReadFailed
from gpuguard.model.ids import NODE, SubjectId, gpu, parse_pci_address
from gpuguard.model.readings import Quantity, Values
from gpuguard.sources.dcgm.fields import BY_NUMBER, DEVICE, PROFILING, fill
from gpuguard.sources.dcgm.talk import READ, Answer, Order

# Where the packages of DCGM 4 and 3 put them.
BINDINGS = (
    "/usr/share/datacenter-gpu-manager-4/bindings/python3",
    "/usr/local/dcgm/bindings/python3",
)
# What fits into one pass of the counters of Ampere and older; the pipes take turns with these where they are watched.
CORE = (1001, 1002, 1003, 1004, 1005, 1009, 1010)
CONNECT_WITHIN = 5.0
QUANTITIES = (
    Quantity(
        name="dcgm_profiling", of="node", unit="flag", low=0, high=1,
        help="1 while nv-hostengine profiles the GPUs for gpuguard, 0 where it cannot.",
    ),
    Quantity(
        name="dcgm_profiling_trouble", of="node", unit="text", kind="text", metric=None,
        help="Why nv-hostengine does not profile.",
    ),
)  # fmt: skip
STOP_WITHIN = 0.5


def find_bindings(wanted: str, places: tuple[str, ...] = BINDINGS) -> str | None:
    """The folder that pydcgm is in: the one that is wanted, else the first of the usual ones; None where it is not."""
    for folder in (wanted,) if wanted else places:
        if (Path(folder) / "pydcgm.py").exists():
            return folder
    return None


class Address:
    """Where the host engine listens: HOST:PORT, or unix:///PATH.

    Raises  ValueError for anything else
    """

    def __init__(self, text: str) -> None:
        self.unix = text.startswith("unix://")
        self.text = text.removeprefix("unix://")
        host, colon, port = text.rpartition(":")
        self._tcp = (host.strip("[]"), int(port)) if not self.unix and port.isdecimal() else ("", 0)
        well = self.text.startswith("/") if self.unix else colon and host and 0 < self._tcp[1] <= 65535
        if not well:
            raise ValueError("is neither HOST:PORT nor unix:///PATH")

    def listens(self, deadline: float) -> bool:
        """Whether anybody takes a connection there."""
        try:
            if not self.unix:
                socket.create_connection(self._tcp, timeout=deadline).close()
                return True
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
                link.settimeout(deadline)
                link.connect(self.text)
        except OSError:
            return False
        return True


class Engine:
    """One child, asked again and again."""

    def __init__(
        self, *, bindings: str, address: Address, every: float, deadline: float, oldest: float, profiling: bool
    ) -> None:
        """Nothing runs yet. A value that is older than `oldest` seconds is none."""
        order = Order(
            bindings=bindings, address=address.text, unix=address.unix, every=every, connect_within=CONNECT_WITHIN,
            device=tuple(field.number for field in DEVICE),
            profiling=tuple(field.number for field in PROFILING) if profiling else (), core=CORE if profiling else (),
        )  # fmt: skip
        self._arguments = [
            sys.executable, "-m", "gpuguard.sources.dcgm.child", msgspec.json.encode(order).decode(),
        ]  # fmt: skip
        self._where, self._deadline, self._oldest = address.text, deadline, oldest
        self._profiling = profiling
        self._child: Child | None = None

    def read(self, wake: int) -> dict[SubjectId, Values] | None:
        """What the engine tells of each GPU, in base units; None when `wake` can be read.

        Raises  ReadFailed; the child is gone or abandoned then
        """
        if self._child is None:
            self._child = Child(self._arguments, environment=dict(os.environ))
        try:
            self._child.send(READ)
            # The first answer comes after connecting and a first round of the engine.
            message = self._child.receive(self._deadline, wake)
            if message is not None:
                return self._rows(msgspec.json.decode(message, type=Answer))
        except Ended as error:
            self.close()
            raise ReadFailed(f"nv-hostengine at {self._where} cannot be read: {error}") from error
        except msgspec.MsgspecError as error:
            self.close()
            raise ReadFailed(f"the child that asks nv-hostengine spoke nonsense: {error}") from error
        return None

    def give_up(self) -> "Child | None":
        """The child did not answer and was abandoned; it, while it has not gone."""
        child, self._child = self._child, None
        if child is None:
            return None
        child.abandon()
        return None if child.gone() else child

    def close(self) -> None:
        """No child is asked any more."""
        if self._child is not None:
            self._child.stop(STOP_WITHIN)
            self._child = None

    def _rows(self, answer: Answer) -> dict[SubjectId, Values]:
        if answer.error:
            self.close()
            raise ReadFailed(f"nv-hostengine at {self._where} cannot be read: {answer.error}")
        found: dict[SubjectId, Values] = {}
        for one in answer.entities:
            try:
                pci = parse_pci_address(one.pci)
            except NotUnderstood as error:
                raise ReadFailed(f"nv-hostengine at {self._where} names a GPU strangely: {error}") from error
            subject = gpu(pci) if one.instance is None else SubjectId(f"mig:{pci}/{one.instance}")
            row = found.setdefault(subject, {})
            for number, (value, age) in one.values.items():
                field = BY_NUMBER.get(number)
                if field is not None and not isinstance(value, str) and age <= self._oldest:
                    fill(row, field, value, "gpu" if one.instance is None else "mig")
        told = {subject: values for subject, values in found.items() if values}
        if told and self._profiling:
            told[NODE] = {"dcgm_profiling": int(not answer.unprofiled)}
            if answer.unprofiled:
                told[NODE]["dcgm_profiling_trouble"] = answer.unprofiled
        return told
