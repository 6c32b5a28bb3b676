"""Every seam of gpuguard, on one page. What stands here is a promise between folders; nothing here does work."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec

from gpuguard.model.actions import Action, Outcome, Question
from gpuguard.model.events import AnyEvent, Batch, Cursor, LogLine, Parsed, Sweep
from gpuguard.model.findings import Finding
from gpuguard.model.ids import EventId, SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Row, SubjectKind, Values
from gpuguard.model.samples import Grain, Stretch
from gpuguard.model.story import Change, OwedAction, StoryEntry


class Clock(Protocol):
    """The only way to learn what time it is."""

    def now(self) -> Instant: ...


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel message as a form understood it, without the log's own prefix.

    `trusted` is false when the form tells that the kernel did not write it (a facility other than kern, a
    transport other than kernel). `utc` and `boot_seconds` are None where the form carries none. `sequence` is
    kmsg's. `fragment` is true for kmsg's `c` and `+` flags. `continued` is true for a printed line that carries no
    prefix of its own and may belong to the line before. `name` is the form's file name. `repeated` is how often the
    line says that it came.
    """

    name: str
    text: str
    trusted: bool = True
    utc: float | None = None
    boot_seconds: float | None = None
    sequence: int | None = None
    fragment: bool = False
    continued: bool = False
    repeated: int = 1


class Form(Protocol):
    """How one kind of log prints a kernel record: one printed line in, one record or None out."""

    name: ClassVar[str]

    def read(self, line: str) -> Record | None: ...


class Grammar(Protocol):
    """One kind of driver or kernel line: the text of one message in, a fact or None out.

    `markers` are byte strings of which at least one stands in every line the grammar can accept; the scanner looks
    at no line without one.
    """

    markers: ClassVar[tuple[bytes, ...]]

    def parse(self, text: str) -> Parsed | None: ...


class Source(Protocol):
    """A place facts come from. `run` works in a thread of its own and returns only when told to stop.

    Raises  Absent when this machine has no such thing; ReadFailed when it stopped answering (supervision starts it
            again with back-off and reports it blind meanwhile)
    """

    name: str

    def run(self, emit: Callable[[Batch], None], cursor: Cursor | None) -> None: ...

    def stop(self) -> None: ...

    def ask(self, question: Question) -> None: ...


@runtime_checkable
class Listener(Protocol):
    """A source that must know what a log says of the driver: it holds its own calls back while the driver is in
    trouble. Comes from another thread and returns at once."""

    def overhear(self, line: LogLine) -> None: ...


@runtime_checkable
class Holder(Protocol):
    """A source that has GPUs open, and lets go of them for so many seconds when one is to be reset. Comes from another
    thread and returns at once."""

    def let_go(self, seconds: float) -> None: ...


@runtime_checkable
class Onlooker(Protocol):
    """A source that must know what others measured: it looks closer at processes that others name. `onlooks` are
    columns of which a sweep must bring one to be shown. Comes from another source's thread and returns at once."""

    onlooks: tuple[str, ...]

    def onlook(self, sweep: Sweep) -> None: ...


class Rules(Protocol):
    """The tables that a part comes with.

    `text` gives that of `rules/detectors/<detector>/<name>`; `texts` those of every TOML file in `rules/<folder>`, by
    name.
    """

    def text(self, name: str) -> str: ...

    def texts(self, folder: str) -> dict[str, str]: ...


class Detector(Protocol):
    """Judges one subject by events, as if it were alone.

    `reads` are the classes of event it wants. `subjects` tells whom an event concerns. The core keeps one `Memory`
    per subject and persists it when it changes; `memory` is its type.
    """

    name: str
    reads: tuple[type, ...]
    memory: type

    def subjects(self, event: AnyEvent) -> Sequence[SubjectId]: ...

    def start(self) -> Any: ...  # Any: each detector has a memory type of its own

    def observe(self, memory: Any, subject: SubjectId, event: AnyEvent) -> tuple[Any, Sequence[Finding]]: ...


class RowDetector(Protocol):
    """Judges one subject by what was measured of it, as if it were alone.

    `of` are the kinds of subject; `reads` the columns of which a sweep must bring one for the row to be shown; other
    columns of the row may be looked at as well. It says of every finding it has an opinion on whether it stands now,
    each time; of what it cannot know (a column that is absent or unknown) it says nothing. The core makes news of
    changes alone, fills in `source`, `because` and `at`, and keeps one `Memory` per subject.
    """

    name: str
    of: tuple[SubjectKind, ...]
    reads: tuple[str, ...]
    memory: type

    def start(self) -> Any: ...  # Any: each detector has a memory type of its own

    def observe(self, memory: Any, subject: SubjectId, row: Row) -> tuple[Any, Sequence[Finding]]: ...


class MachineDetector(Protocol):
    """Judges how the parts of the machine stand to each other: what no row alone can tell.

    `of` are the kinds of subject; `reads` the columns of which a sweep must bring one for it to be asked. It is shown
    every row of these kinds, by subject, and says of each finding whether it stands, as a RowDetector does; a finding
    may be of any subject, and one that stood must be taken back by itself when it does no longer. The core keeps one
    `Memory`, under the node.
    """

    name: str
    of: tuple[SubjectKind, ...]
    reads: tuple[str, ...]
    memory: type

    def start(self) -> Any: ...  # Any: each detector has a memory type of its own

    def survey(self, memory: Any, rows: Mapping[SubjectId, Row]) -> tuple[Any, Sequence[Finding]]: ...


class Deriver(Protocol):
    """Concludes rows from rows, before any check judges: what of several subjects together makes a job.

    `reads` are the columns of which a sweep must bring one for it to be asked; `yields` all that it may conclude, and
    `valid_for` for how many seconds they hold. It asks for rows by their kinds, as what it needs for most sweeps is
    little of what there is. What it says of a subject takes the place of what it said of it before. The core keeps one
    `Memory`, which may change with every sweep: it is written down every half a minute, so after a restart it may lack
    that much.
    """

    name: str
    reads: tuple[str, ...]
    yields: tuple[str, ...]
    valid_for: float
    memory: type

    def start(self) -> Any: ...  # Any: each deriver has a memory type of its own

    def derive(
        self, memory: Any, rows: "RowsOf", at: Instant, brought: Mapping[SubjectId, Values]
    ) -> tuple[Any, Mapping[SubjectId, Values]]:
        """`brought` is what this sweep brought; all else in the rows is from before `at`."""


class RowsOf(Protocol):
    """Everything that is known now of every subject of these kinds."""

    def __call__(self, *kinds: SubjectKind) -> Mapping[SubjectId, Row]: ...


AnyDetector = Detector | RowDetector | MachineDetector | Deriver


@runtime_checkable
class Actuator(Protocol):
    """A place actions go to. Knows one node: its own.

    Raises  nothing that belongs to the target: that is an Outcome. Every call ends within its deadline.
    """

    name: str

    def perform(self, action: Action) -> Outcome: ...

    def read_state(self) -> "NodeReport": ...


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler says of this node now.

    `state` is the word as the target prints it; `flags` its parts in upper case; `drained` whether it takes no new
    work; `reason` the text that stands with it, '' for none; `ours` the token id when the reason is one of
    gpuguard's. `error` is None, or why nothing could be learned; `refused` whether asking again will not help.
    """

    target: str
    node: str
    state: str = ""
    flags: tuple[str, ...] = ()
    drained: bool = False
    reason: str = ""
    ours: str | None = None
    error: str | None = None
    refused: bool = False


class FleetDrain(msgspec.Struct, frozen=True, kw_only=True):
    """A node that stands drained with a token of gpuguard's, as its scheduler shows it. `by` is 'gpuguard', or who
    asked for it as far as that can be told. Units: seconds since 1970
    """

    node: str
    token: str
    code: str = ""
    since_utc: float | None = None
    by: str = "gpuguard"


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler says of the whole fleet now: the truth that a drain's budget is counted over.

    `nodes` is how many nodes with GPUs take part in it; those that are powered off, not yet registered or about to be
    deleted do not. `error` is None, or why nothing could be learned; then `nodes` says nothing, and `refused` tells
    whether asking again will not help.
    """

    target: str
    nodes: int = 0
    drains: tuple[FleetDrain, ...] = ()
    error: str | None = None
    refused: bool = False


@runtime_checkable
class Overseer(Protocol):
    """An actuator that can say how the whole fleet stands. Ends within its deadline and raises nothing."""

    def read_fleet(self) -> FleetReport: ...


@runtime_checkable
class Rehearser(Protocol):
    """An actuator whose target can be told of a drain that is only rehearsed, in a form that nothing acts upon."""

    def rehearse(self, action: Action) -> Outcome: ...


@runtime_checkable
class Bookkeeper(Protocol):
    """An actuator whose target keeps the fleet's book."""

    def ledger(self) -> "Ledger": ...


class LedgerPage(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet's book as it was read: its bytes, empty where there is none yet; `version`, by which a write knows that
    nobody was faster; and the time by the keeper's clock, which all nodes share. Units: seconds since 1970
    """

    version: str
    text: bytes
    utc: float


class Ledger(Protocol):
    """The book that all nodes of a fleet share, changed by compare-and-set alone.

    `until` is a moment of time.monotonic(); every call ends by then. `write` returns False when somebody was faster:
    nothing was written, read again. `anew` is what a person does to have an empty book, in the words of a sentence
    that begins with "to have an empty one": for one that nobody can read.
    Raises  ReadFailed when the keeper gives no answer, ReadRefused when it says no; both with the next step
    """

    name: str
    anew: str

    def read(self, until: float) -> LedgerPage: ...

    def write(self, page: LedgerPage, text: bytes, until: float) -> bool: ...


class StoreReader(Protocol):
    """What was written down, for anybody who asks.

    `load_state` gives the core's own state by key. `story` gives the newest `limit` entries, oldest of them first;
    `since` is in seconds since 1970, and an entry without a date counts as recent enough.
    Raises  StoreFailed when the memory cannot be read; NotUnderstood for a record in a form we do not know
    """

    def load_state(self) -> dict[str, bytes]: ...

    def cursors(self) -> dict[str, Cursor]: ...

    def actions(self) -> tuple[OwedAction, ...]: ...

    def owed_actions(self) -> tuple[OwedAction, ...]: ...

    def story(
        self, subject: SubjectId | None = None, since: float | None = None, limit: int = 1000
    ) -> tuple[StoryEntry, ...]: ...

    def event(self, event_id: EventId) -> LogLine | None: ...

    def has_event(self, event_id: EventId) -> bool: ...

    def samples(self, gpu: str, grain: Grain, since: float, until: float) -> tuple[Stretch, ...]: ...

    def close(self) -> None: ...


class Store(StoreReader, Protocol):
    """Durable memory with one writer.

    `commit` returns when all of the change would survive a power loss. When it raises, none of it was written, and
    the same change may be committed again. `keep_samples` keeps what may be lost: a minute of it more or less.
    Raises  StoreFailed, which names the next step
    """

    def commit(self, change: Change) -> None: ...

    def keep_samples(self, stretches: Sequence[Stretch]) -> None: ...
