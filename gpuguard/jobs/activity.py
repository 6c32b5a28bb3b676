"""What a GPU has been doing, from what is measured of it every few seconds.

Utilisation says in how much of the time a kernel ran; it says nothing of what the kernel did. A collective that waits
for a rank that will never come runs as a kernel for ever: it polls a flag. So a look is read against what work costs:

    working    something is computed or moved: tensor, FP64 or memory pipes are busy, bytes go over NVLink or PCIe, or
               the board draws nearly what it drew for this job when it worked
    spinning   a kernel runs nearly all the time, and none of that is so: pipes and links at rest, and the power far
               below that of work. How many SMs it holds says nothing: a collective holds a few, a kernel that loops
               for ever may hold all
    idle       hardly a kernel runs
    unclear    the look tells none of these; it neither ends nor prolongs anything for good

What each GPU draws at work differs by product, limit and program, so it is learned from looks that other columns prove
to be work (a slow maximum), and only where nothing of this job was seen to work a share of the power limit stands in.
Clocks that are held down make power low as well: where pipes cannot be seen, low power counts only at full clocks.

`sawtooth` is told over some minutes: the GPU stands idle again and again for a good part of the time, and works in
between: it is fed too slowly. The looks are seconds apart: of gaps that are shorter only a low mean is seen, which a
caller must hold against the loaders. One that is the same for far longer than its gaps were is no sawtooth any more.
Spinning between bursts of work is no gap: another rank is slower, or this one waits for it.

High utilisation alone is therefore never progress, and none alone never a fault: what follows is for the verdict.

Reads   rows of gpu:*, each as a whole; every column but utilization_ratio may be absent or unknown: those of GPM are on
        Ampere and older, and all of them while the GPU is cut into instances
Source  nvml.h 13.5: utilisation is that of the last sample period, GPM's columns are means since the last look. An H100
        in a hung all-gather: 100 %, 152 of 700 W, its neighbours with an open context at rest 129 to 137 W
        (NVIDIA/nccl#1550), with none 70 W (#1967); a V100 in a hung test: 100 %, 44 of 250 W (#199). The signature of
        `sichek`: SM >= 95 %, memory < 5 %, power < 100 to 160 W, clocks high, PCIe < 300 MB/s for 60 s
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from gpuguard.jobs.views import GpuView, Pattern
from gpuguard.model.ids import SubjectId
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.readings import Row
from gpuguard.model.units import Seconds

Look = Literal["working", "spinning", "idle", "unclear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where work begins and ends; most numbers are wide, as work and its absence lie far apart."""

    busy: float = 0.90  # a kernel runs nearly always: a stuck collective reads 100 %; some drivers round it to 99 %
    resting: float = 0.05  # below this share of the time a kernel runs: housekeeping of a monitor or a display
    # Tensor and FP64 pipes at work; training runs the first at 0.2 to 0.6, a collective at 0. That of FP32 does
    # integers as well, so a kernel that loops for ever keeps it busy: it is not asked.
    pipes: float = 0.02
    memory: float = 0.05  # sichek's bound for memory at rest; training is at 0.2 to 0.6, decoding above
    links: float = 300e6  # bytes a second, one way, over PCIe or NVLink; sichek's bound for PCIe
    power_of_work: float = 0.60  # of what it drew at work; hung GPUs are at 20 to 45 % of that
    # The same where the pipes are seen at rest, and integers or FP32 alone could be work: an endless loop on all SMs
    # draws up to three quarters of what training does.
    power_near_work: float = 0.80
    power_of_limit: float = 0.35  # of the limit, where it was never seen at work: 245 of 700 W, 87 of 250 W
    clock_of_work: float = 0.80  # below this share of the clock at work the clocks are held down
    learning: float = 0.1  # how fast power and clock of work follow what is above them; a spike does not make them
    forgetting: float = 0.002  # how fast they sink while it works below them: half of the way in half an hour
    proven: int = 3  # looks at work after which it is known to have worked
    patience: int = 3  # looks that were unclear, after which the pattern is unknown: 15 s at the usual pace
    window: Seconds = Seconds(600.0)  # over which the mean is taken
    lately: Seconds = Seconds(90.0)  # and over which the mean of a view is: with the newest part some 100 s
    sawtooth_window: Seconds = Seconds(240.0)  # some ten gaps of a loader that takes 10 to 20 s
    sawtooth_turns: int = 4  # times that it began to work anew within that: once more than a pause for a checkpoint
    sawtooth_gap: float = 0.30  # share of idle looks within that; less is the tail of any loader
    sawtooth_work: float = 0.05  # share of working looks within that
    sawtooth_same: float = 4.0  # the same for this many times its mean gap: no sawtooth any more
    sawtooth_same_floor: Seconds = Seconds(45.0)  # and for at least this long
    silence: Seconds = Seconds(60.0)  # without a look for so long nothing goes on unseen


DEFAULTS = Settings()
# Parts that the window is kept in; each is a few numbers.
PARTS = 20


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the window: how many looks it had, of what kind, the sum of their activity, and how often the GPU began
    to work after it had been idle."""

    at: Instant
    looks: int = 0
    working: int = 0
    idle: int = 0
    turns: int = 0
    activity: float = 0.0


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU has been doing for one job; grows to some twenty parts and no further.

    `look` is what the last clear look showed, since when without a break; `unclear` how many looks were unclear since.
    `worked` counts looks at work; `power` and `clock` are those of work. `sawtooth` is since when it has been one;
    `peak` the most memory that was in use, of `memory`; `sm` and `words` are of the last look.
    """

    job: str = ""
    last: Instant | None = None
    look: Look = "unclear"
    since: Instant | None = None
    unclear: int = 0
    worked: int = 0
    power: float | None = None
    clock: float | None = None
    parts: tuple[Part, ...] = ()
    sawtooth: Instant | None = None
    gapped: bool = False
    peak: float | None = None
    memory: float | None = None
    sm: float | None = None
    words: str = ""

    def of(self, job: str) -> "Activity":
        """The same, or one that knows nothing where another job has the GPU now: what one job drew at work, or whether
        it worked, says nothing of the next."""
        return self if job == self.job else Activity(job=job)

    def seen(self, row: Row, at: Instant, settings: Settings = DEFAULTS) -> "Activity":
        """With one more look; a row that says nothing of kernels changes nothing.

        To be called when somebody looked at the GPU, not when another source's columns came: the same look again would
        count as another."""
        utilization = row.number("utilization_ratio")
        if utilization is None and "utilization_ratio" not in row.values and row.number("sm_active_ratio") is None:
            return self
        gap = None if self.last is None else seconds_between(self.last, at)
        if gap is not None and gap <= 0 and self.last is not None and self.last.boot == at.boot:
            return self  # the same look again, with another source's columns
        look = self._read(row, settings)
        broken = gap is None or gap > settings.silence
        power, clock = self._at_work(row, look, settings)
        began = look == "working" and self.gapped and not broken
        # A look that told nothing, as while the GPU is cut into instances, is not one at which it did nothing.
        blind = row.number("utilization_ratio") is None and row.number("sm_active_ratio") is None
        parts = self.parts if blind else self._counted(look, _activity(row, look, power), began, at, settings)
        since, kind, unclear = self._run(look, at, broken, settings)
        after = Activity(
            job=self.job, last=at, look=kind, since=since, unclear=unclear,
            worked=self.worked + (look == "working"), power=power, clock=clock, parts=parts, sawtooth=self.sawtooth,
            gapped=look == "idle" or (self.gapped and look != "working"),
            peak=_most(self.peak, row.number("memory_used_bytes")),
            memory=row.number("memory_total_bytes") or self.memory, sm=row.number("sm_active_ratio"), words=_words(row),
        )  # fmt: skip
        return after._judged_sawtooth(at, settings)

    def view(self, gpu: SubjectId, at: Instant, settings: Settings = DEFAULTS) -> GpuView:
        """As the verdict sees it; unknown where nobody looked for a while."""
        age = None if self.last is None else seconds_between(self.last, at)
        if age is None or age > settings.silence:
            return GpuView(gpu=gpu, worked=self.has_worked(settings))
        pattern: Pattern
        if self.sawtooth is not None:
            pattern, since = "sawtooth", self.sawtooth
        elif self.look == "unclear" or self.unclear > settings.patience:
            pattern, since = "unknown", at
        else:
            pattern, since = self.look, self.since or at
        return GpuView(
            gpu=gpu, pattern=pattern, pattern_seconds=max(0.0, seconds_between(since, at) or 0.0),
            activity=self.lately(settings), sm=self.sm, worked=self.has_worked(settings), words=self.words,
        )  # fmt: skip

    def has_worked(self, settings: Settings = DEFAULTS) -> bool:
        """Whether it was ever seen to work for this job."""
        return self.worked >= settings.proven

    @property
    def activity(self) -> float | None:
        """Mean activity within the window, 0 to 1; spinning is none. None before the first look."""
        return _mean(self.parts)

    def lately(self, settings: Settings = DEFAULTS) -> float | None:
        """The same of the newest of it, so that a change shows."""
        newest = self.parts[-1:]
        return _mean([one for one in self.parts if _age(one.at, newest[0].at) <= settings.lately])

    # --- one look ---------------------------------------------------------------------------------------------------

    def _read(self, row: Row, settings: Settings) -> Look:
        """What one look shows."""
        utilization, sm = row.number("utilization_ratio"), row.number("sm_active_ratio")
        ran = max((value for value in (utilization, sm) if value is not None), default=None)
        if ran is None:
            return "unclear"
        if _any_above(row, settings):
            return "working"
        if ran < settings.resting:
            return "idle"
        power = row.number("power_watts")
        drawn = power / self.power if power is not None and self.power else None
        pipes_at_rest = row.number("tensor_active_ratio") is not None and row.number("dram_active_ratio") is not None
        if drawn is not None and drawn >= (settings.power_near_work if pipes_at_rest else settings.power_of_work):
            return "working"
        if (ran if utilization is None else utilization) < settings.busy:
            return "unclear"  # small kernels, or the beginning or the end of a wait
        if drawn is not None:
            far_below = pipes_at_rest or not self._held_down(row, settings)
        else:
            limit = row.number("power_limit_watts")
            low = power < settings.power_of_limit * limit if power is not None and limit is not None else None
            far_below = low is True or (low is None and pipes_at_rest)
        return "spinning" if far_below else "unclear"

    def _held_down(self, row: Row, settings: Settings) -> bool:
        """Whether the clocks are lower than at work, so that low power says nothing."""
        clock = row.number("sm_clock_hertz")
        return self.clock is not None and clock is not None and clock < settings.clock_of_work * self.clock

    def _at_work(self, row: Row, look: Look, settings: Settings) -> tuple[float | None, float | None]:
        """Power and clock of work, with what this look adds."""
        if look != "working":
            return self.power, self.clock
        return (
            _follow(self.power, row.number("power_watts"), settings),
            _follow(self.clock, row.number("sm_clock_hertz"), settings),
        )

    # --- over time --------------------------------------------------------------------------------------------------

    def _run(self, look: Look, at: Instant, broken: bool, settings: Settings) -> tuple[Instant | None, Look, int]:
        """Since when it is so, what, and how many looks have been unclear since."""
        if look == "unclear":
            return (None, "unclear", 0) if broken else (self.since, self.look, self.unclear + 1)
        if look == self.look and not broken and self.since is not None and self.unclear <= settings.patience:
            return self.since, look, 0
        return at, look, 0

    def _counted(self, look: Look, activity: float, began: bool, at: Instant, settings: Settings) -> tuple[Part, ...]:
        parts = tuple(part for part in self.parts if _age(part.at, at) <= settings.window)
        newest = parts[-1] if parts else None
        if newest is None or _age(newest.at, at) >= settings.window / PARTS:
            newest, parts = Part(at=at), parts[-PARTS:]
        else:
            parts = parts[:-1]
        grown = Part(
            at=newest.at, looks=newest.looks + 1, working=newest.working + (look == "working"),
            idle=newest.idle + (look == "idle"), turns=newest.turns + began, activity=newest.activity + activity,
        )  # fmt: skip
        return (*parts, grown)

    def _judged_sawtooth(self, at: Instant, settings: Settings) -> "Activity":
        """With whether it is a sawtooth by now."""
        parts = [part for part in self.parts if _age(part.at, at) <= settings.sawtooth_window]
        looks = sum(part.looks for part in parts)
        turns = sum(part.turns for part in parts)
        idle = sum(part.idle for part in parts)
        working = sum(part.working for part in parts)
        so = (
            turns >= settings.sawtooth_turns
            and idle >= settings.sawtooth_gap * looks
            and working >= settings.sawtooth_work * looks
        )
        if so and self.since is not None:
            run = _age(self.since, at)
            idled = _age(parts[0].at, at) * idle / looks - (run if self.look == "idle" else 0.0)
            so = run < max(settings.sawtooth_same_floor, settings.sawtooth_same * idled / turns)
        if so == (self.sawtooth is not None):
            return self
        return msgspec.structs.replace(self, sawtooth=parts[0].at if so else None)


def _any_above(row: Row, settings: Settings) -> bool:
    """Whether a pipe, the memory or a link is at work."""
    for names, bound in (
        (("tensor_active_ratio", "fp64_active_ratio"), settings.pipes),
        (("dram_active_ratio", "memory_copy_ratio"), settings.memory),
        (
            (
                "pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second", "nvlink_tx_bytes_per_second",
                "nvlink_rx_bytes_per_second",
            ),
            settings.links,
        ),
    ):  # fmt: skip
        for name in names:
            value = row.number(name)
            if value is not None and value >= bound:
                return True
    return False


def _activity(row: Row, look: Look, power_of_work: float | None) -> float:
    """How active it was, 0 to 1: a kernel that waits is not, and part of a look may have been a wait, in which few SMs
    are held, or little power is drawn."""
    if look in ("spinning", "idle"):
        return 0.0
    sm, utilization, power = (
        row.number(name) for name in ("sm_active_ratio", "utilization_ratio", "power_watts")
    )  # fmt: skip
    if sm is not None:
        return min(1.0, sm)
    drawn = power / power_of_work if power is not None and power_of_work else 1.0
    return min(1.0, utilization or 0.0) * min(1.0, drawn)


def _mean(parts: Sequence[Part]) -> float | None:
    looks = sum(part.looks for part in parts)
    return sum(part.activity for part in parts) / looks if looks else None


def _follow(known: float | None, value: float | None, settings: Settings) -> float | None:
    """A slow maximum: it rises within a minute and sinks within an hour."""
    if value is None or known is None:
        return value if known is None else known
    return known + (value - known) * (settings.learning if value > known else settings.forgetting)


def _most(known: float | None, value: float | None) -> float | None:
    return value if known is None else known if value is None else max(known, value)


def _age(earlier: Instant, later: Instant) -> float:
    """Seconds between; what cannot be compared is long ago."""
    age = seconds_between(earlier, later)
    return float("inf") if age is None else age


def _words(row: Row) -> str:
    """What was measured, for people."""
    told: list[str] = []
    for name, word in (
        ("utilization_ratio", "utilisation"), ("sm_active_ratio", "SM"), ("tensor_active_ratio", "tensor"),
        ("dram_active_ratio", "memory"),
    ):  # fmt: skip
        if (value := row.number(name)) is not None:
            told.append(f"{word} {100 * value:.0f} %")
    power, limit = row.number("power_watts"), row.number("power_limit_watts")
    if power is not None:
        told.append(f"{power:.0f} of {limit:.0f} W" if limit is not None else f"{power:.0f} W")
    for ways, word in (("pcie", "PCIe"), ("nvlink", "NVLink")):
        moved = [row.number(f"{ways}_{way}_bytes_per_second") for way in ("tx", "rx")]
        known = [value for value in moved if value is not None]
        if known:
            told.append(f"{word} {_rate(sum(known))}")
    return ", ".join(told)


def _rate(value: float) -> str:
    """Bytes per second for people."""
    for bound, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if value >= bound:
            return f"{value / bound:.1f} {unit}" if value < 10 * bound else f"{value / bound:.0f} {unit}"
    return f"{value:.0f} B/s"
