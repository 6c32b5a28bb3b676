"""What the privileged process is told: section [actuator]. Here, because the agent checks the whole file."""

from dataclasses import dataclass

from gpuguard.actuators import TARGETS
from gpuguard.actuators.delegate import SOCKET
from gpuguard.model.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What performs (one of actuators.TARGETS), where it listens, and who may ask besides root."""

    target: str = (
        "dry_run"  # "slurm" and "bundled" (gpuguard's own scheduler) write there; "dry_run" says what it would do
    )
    socket: str = SOCKET  # where it listens, unless systemd hands it a socket
    allow_users: tuple[str, ...] = ("gpuguard",)  # who may ask besides root
    idle_exit: Seconds = Seconds(60.0)  # it ends after this long without a question; its socket starts it again

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ValueError(f"target: must be one of {', '.join(TARGETS)}")
        if not self.socket.startswith("/"):
            raise ValueError("socket: must be an absolute path")
        if self.idle_exit < 1.0:
            raise ValueError("idle_exit: must be at least 1 second")
