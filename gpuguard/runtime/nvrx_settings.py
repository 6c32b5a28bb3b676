"""What answers NVRx is told: section [nvrx]. Here, because the agent checks the whole file."""

from dataclasses import dataclass

SOCKET = "/run/gpuguard-nvrx/nvrx.sock"
# sun_path of a Unix socket has 108 bytes, the last of them 0: man unix(7).
PATH_LIMIT = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the node health check of NVIDIA's resiliency extension is answered."""

    socket: str = SOCKET  # what `ft_launcher --ft-node-health-check-endpoint` names; everybody on the node may ask

    def __post_init__(self) -> None:
        if not self.socket.startswith("/"):
            raise ValueError("socket: must be an absolute path")
        if len(self.socket.encode()) > PATH_LIMIT:
            raise ValueError(f"socket: must have at most {PATH_LIMIT} bytes, as no socket may have a longer name")
