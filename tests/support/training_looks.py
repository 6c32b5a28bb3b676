"""What a rank of a training job does shows in numbers of its process and of its GPU: tables for a simulator.

Source  GPUs: figures of H100 SXM boards, at rest 70 W, with an open context to 135 W, in a hung collective 110 to 250 W
        (NVIDIA/nccl#1550, #1967), training 450 to 690 of 700 W with tensor pipes at 0.25 to 0.55. Processes: what
        /proc tells of PyTorch ranks with eight loaders each
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from gpuguard.model.readings import Values

MEMORY = 80 * 2**30
LIMIT_WATTS = 700.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """One thing that a rank can do. `gpu` is what its GPU does meanwhile; rates are a second; `states` are the letters
    that a look may find, as likely as they are many; `stall` is the share of time that it waits for storage."""

    gpu: str
    states: str = "R"
    cpu: float = 0.0
    children: float = 0.0
    switches: float = 0.0
    read: float = 0.0
    written: float = 0.0
    stall: float = 0.0
    waits_in: str = ""


DOINGS: Mapping[str, Doing] = {
    "work": Doing(gpu="work", states="RRS", cpu=0.95, children=0.9, switches=180, read=3e6),
    "work and save": Doing(gpu="work", states="RRS", cpu=1.5, children=0.9, switches=260, read=3e6, written=6e8),
    "evaluate": Doing(gpu="evaluate", states="RRS", cpu=0.9, children=0.6, switches=150, read=2e6),
    "score": Doing(gpu="rest", states="R", cpu=1.0, switches=15, read=1e3),
    "wait": Doing(gpu="wait", states="R", cpu=1.0, switches=1.5),
    "loop": Doing(gpu="loop", states="R", cpu=1.0, switches=1.5),
    "load": Doing(gpu="rest", states="S", cpu=0.03, children=6.5, switches=25, read=2e4),
    "save": Doing(gpu="rest", states="RSD", cpu=0.6, switches=300, written=9e8, stall=0.3, waits_in="balance_dirty"),
    "restore": Doing(gpu="copy", states="RSD", cpu=0.5, switches=250, read=9e8, stall=0.3, waits_in="folio_wait_bit"),
    "import": Doing(gpu="rest", states="RRS", cpu=0.9, switches=120, read=3e7),
    "compile": Doing(gpu="rest", states="R", cpu=1.0, children=9.0, switches=40, read=2e5, written=2e5),
    "read slowly": Doing(
        gpu="rest", states="D", cpu=0.01, switches=8, read=1.5e5, stall=0.95, waits_in="nfs_wait_bit_killable"
    ),
    "hang in storage": Doing(gpu="rest", states="D", stall=1.0, waits_in="rpc_wait_bit_killable"),
    "locked": Doing(gpu="rest", states="S", cpu=0.003, waits_in="futex_wait_queue"),
    "stopped": Doing(gpu="rest", states="T", waits_in="do_signal_stop"),
    "gone": Doing(gpu="rest"),
    "away": Doing(gpu="rest"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """What one look at a GPU shows while it does one thing all the time."""

    busy: float
    sm: float
    tensor: float
    dram: float
    watts: float
    pcie: float
    nvlink: float


@dataclass(slots=True)
class Board:
    """One simulated GPU: what it shows for each thing that it does differs a little from board to board."""

    shows: dict[str, Show]
    peers: bool
    pipes: bool
    noise: Random
    watts: float = 100.0

    def row(self, mix: Mapping[str, float], newest: Mapping[str, float], used: float) -> Values:
        """The row of one look: `mix` are seconds of each thing since the last look, `newest` those of the last second.

        Utilisation and power are those of the last second, the rest are means since the last look.
        """
        around = self.noise.gauss
        seconds, last = sum(mix.values()) or 1.0, sum(newest.values()) or 1.0
        sm = tensor = dram = pcie = nvlink = 0.0
        for doing, part in mix.items():
            show, share = self.shows[DOINGS[doing].gpu], part / seconds
            sm, tensor, dram = sm + share * show.sm, tensor + share * show.tensor, dram + share * show.dram
            pcie, nvlink = pcie + share * show.pcie, nvlink + share * show.nvlink
        shown = [(self.shows[DOINGS[doing].gpu], part / last) for doing, part in newest.items()]
        busy = sum(share * show.busy for show, share in shown)
        watts = sum(share * show.watts for show, share in shown)
        self.watts += 0.8 * (watts - self.watts)
        row: Values = {
            "gpu_up": 1, "performance_state": 0, "sm_clock_hertz": 1.98e9 - 2.5e8 * min(1.0, tensor / 0.3),
            "memory_clock_hertz": 2.619e9, "temperature_celsius": round(28 + self.watts / 20),
            "power_watts": round(max(60.0, self.watts + around(0.0, 2.0)), 3),
            "utilization_ratio": round(min(1.0, max(0.0, busy)), 2), "memory_copy_ratio": round(min(1.0, dram), 2),
            "memory_total_bytes": MEMORY, "memory_used_bytes": int(used), "memory_free_bytes": int(MEMORY - used),
        }  # fmt: skip
        if self.pipes:
            row |= {
                "sm_active_ratio": _ratio(sm, around(0.0, 0.004)), "tensor_active_ratio": _ratio(tensor, 0.0),
                "sm_occupancy_ratio": _ratio(0.3 * sm, 0.0), "dram_active_ratio": _ratio(dram, 0.0005),
                "pcie_tx_bytes_per_second": pcie * 0.4 + 5e5, "pcie_rx_bytes_per_second": pcie + 5e5,
            }  # fmt: skip
            if self.peers:
                row |= {"nvlink_tx_bytes_per_second": nvlink, "nvlink_rx_bytes_per_second": nvlink}
        return row


def board(chance: Random, *, peers: bool, pipes: bool, likeness: Random) -> Board:
    """A board: `likeness` draws what all boards of the job have in common, `chance` how it differs."""
    work, spin = likeness.uniform(450, 680), likeness.uniform(115, 245)
    tensor, dram, sms = likeness.uniform(0.25, 0.55), likeness.uniform(0.2, 0.5), likeness.uniform(0.03, 0.3)
    rest, loop = likeness.uniform(75, 135), likeness.uniform(160, 340)
    feed, exchange = likeness.uniform(5e7, 6e8), likeness.uniform(5e9, 9e10)
    own = chance.uniform(0.97, 1.03)
    return Board(
        shows={
            "work": Show(busy=1.0, sm=0.85, tensor=tensor, dram=dram, watts=work * own, pcie=feed, nvlink=exchange),
            "evaluate": Show(
                busy=0.97, sm=0.7, tensor=0.5 * tensor, dram=0.45, watts=0.7 * work * own, pcie=feed, nvlink=1e7
            ),
            "wait": Show(busy=1.0, sm=sms, tensor=0.0, dram=0.003, watts=spin * own, pcie=2e6, nvlink=1e4),
            "loop": Show(busy=1.0, sm=1.0, tensor=0.0, dram=0.002, watts=loop * own, pcie=1e6, nvlink=0.0),
            "rest": Show(busy=0.0, sm=0.0, tensor=0.0, dram=0.0, watts=rest * own, pcie=5e5, nvlink=0.0),
            "copy": Show(busy=0.02, sm=0.01, tensor=0.0, dram=0.01, watts=rest * own + 25, pcie=3e9, nvlink=0.0),
        },
        peers=peers, pipes=pipes, noise=chance,
    )  # fmt: skip


def _ratio(value: float, noise: float) -> float:
    return round(min(1.0, max(0.0, value + noise)), 4)
