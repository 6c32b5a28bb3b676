"""Who holds up a collective: what the flight recorders of several ranks say together.

A collective ends when every rank of its group has called it, with the same arguments. So, in this order:

    missing    ranks wait for call N of a group, and others of it have not called N. Those of the others that wait for
               nobody are the ones; those that wait themselves, for somebody in another group, are waiting like the rest
    crossed    all of those that are waited for wait themselves, in a circle: groups are called in different orders
    mismatch   all have called N, and not the same thing: those in the minority are the ones
    behind     the kernel of N runs on some ranks and has not begun on others: those are busy with something before it
    network    all have called N, its kernel runs, and it does not end: nothing that a rank did; a link or a card
    quiet      nothing waits

Of a rank without a dump nothing is known. Where one is waited for, it is told as `unseen`: it may be the one.
Source  the theory is that of PyTorch's own tools/flight_recorder, which compares the same dumps by hand
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from gpuguard.model.flight import FlightSummary, GroupFlight, Waiting
from gpuguard.model.numbers import numbers_in, spans

Kind = Literal["missing", "crossed", "mismatch", "behind", "network", "quiet"]
# Calls of which every rank has the same sizes; of others (gather, scatter, all_to_all) they may differ.
EVEN = frozenset({
    "all_reduce", "broadcast", "reduce", "_all_gather_base", "all_gather_into_tensor", "_reduce_scatter_base",
    "reduce_scatter_tensor", "allreduce_coalesced", "all_reduce_coalesced",
})  # fmt: skip
SURE, LIKELY, VAGUE = 0.95, 0.8, 0.5

_Key = tuple[str, str]  # a group: its name and its ranks, as groups of different ranks may have one name


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What the dumps say together. `culprits` are the ranks that hold up the others, none where no rank does;
    `waiting` those that are held up; `unseen` those that are waited for and have no dump. `number` is that of the
    call, in `group`; `why` says it in one sentence."""

    kind: Kind
    culprits: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    unseen: tuple[int, ...] = ()
    group: str = ""
    number: int | None = None
    call: str = ""
    why: str = ""
    confidence: float = 0.0


def compare(summaries: Mapping[int, FlightSummary], *, of_all: Sequence[int] = ()) -> Comparison:
    """Who holds up whom, by the dump of each rank. `of_all` are all ranks of the job, where they are known."""
    groups = _gather(summaries, of_all)
    stuck: dict[int, _Wait] = {}
    targets: set[int] = set()
    for group in groups:
        for rank, waiting in group.waits.items():
            wanted = group.wanted(rank, waiting)
            if not wanted:
                continue
            targets |= wanted
            wait = _Wait(group=group, waiting=waiting, wanted=wanted)
            if rank not in stuck or _age(wait.waiting) < _age(stuck[rank].waiting):
                stuck[rank] = wait
    if targets:
        return _held_by(targets, stuck, summaries)
    return _all_called(groups)


class _Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One rank waits, for these ranks."""

    group: "_Group"
    waiting: Waiting
    wanted: set[int]


class _Group(msgspec.Struct, kw_only=True):
    """One group, over all ranks that know it: how far each has called it, and what each waits for."""

    name: str
    about: str
    members: tuple[int, ...]
    enqueued: dict[int, int] = {}
    waits: dict[int, Waiting] = {}

    def words(self) -> str:
        return f"{self.name} ({self.about})" if self.about else self.name or "the default group"

    def wanted(self, rank: int, waiting: Waiting) -> set[int]:
        """The members that this call waits for: they have not made it, or nobody knows whether they have."""
        if waiting.p2p:
            peer = self._peer(rank, waiting)
            return set() if peer is None or self._answers(rank, peer) else {peer}
        return {member for member in self.members if self.enqueued.get(member, -1) < waiting.number} - {rank}

    def _peer(self, rank: int, waiting: Waiting) -> int | None:
        """The other end of `recv 1<-0` and `send 0->1`, whose numbers are places in the group."""
        words = waiting.call.replace("<-", " ").replace("->", " ").split()
        ends = [int(word) for word in words if word.isdecimal() and len(word) < 10]
        if len(ends) != 2 or max(ends) >= len(self.members):
            return None
        peer = self.members[ends[1]]  # in both the caller comes first
        return None if peer == rank else peer

    def _answers(self, rank: int, peer: int) -> bool:
        """Whether the peer waits for this very rank as well: then both have called, and the line between them is it."""
        other = self.waits.get(peer)
        return other is not None and other.p2p and self._peer(peer, other) == rank


def _gather(summaries: Mapping[int, FlightSummary], of_all: Sequence[int]) -> list[_Group]:
    found: dict[_Key, list[tuple[int, GroupFlight]]] = {}
    for rank in sorted(summaries):
        for group in summaries[rank].groups:
            found.setdefault((group.name, group.ranks), []).append((rank, group))
    groups = []
    for (name, ranks), seen in sorted(found.items()):
        about = seen[0][1].about
        # Where the dump does not tell who belongs to it, the whole job belongs to the default group.
        members = set(numbers_in(ranks)) | {rank for rank, _ in seen}
        if not ranks and about == "default_pg":
            members |= {*of_all, *summaries}
        groups.append(_Group(
            name=name, about=about, members=tuple(sorted(members)),
            # A rank with a dump that does not have the group has not called it once.
            enqueued={rank: 0 for rank in members if rank in summaries} | {rank: g.enqueued for rank, g in seen},
            waits={rank: group.waiting for rank, group in seen if group.waiting is not None},
        ))  # fmt: skip
    return groups


def _held_by(
    targets: set[int], stuck: Mapping[int, _Wait], summaries: Mapping[int, FlightSummary]
) -> Comparison:  # fmt: skip
    waiting = tuple(sorted(stuck))
    free = targets - stuck.keys()
    seen = tuple(sorted(free & summaries.keys()))
    unseen = tuple(sorted(free - summaries.keys()))
    first = min(stuck, key=lambda rank: (not stuck[rank].wanted & free, _age(stuck[rank].waiting), rank))
    wait = stuck[first]
    call, group, number = wait.waiting.call, wait.group.words(), wait.waiting.number
    what = f"{call} number {number} of group {group}"
    if not free:
        return Comparison(
            kind="crossed", waiting=waiting, group=group, number=number, call=call, confidence=LIKELY,
            why=f"{_ranks(waiting)} wait for each other in a circle: they call their groups in different orders; "
                f"{_ranks((first,))} waits in {what}",
        )  # fmt: skip
    held = f"{_ranks(waiting)} {_verb(waiting, 'waits', 'wait')} in {what}{_at(wait.waiting)}"
    if seen:
        rest = f"; nothing is known of {_ranks(unseen)}" if unseen else ""
        return Comparison(
            kind="missing", culprits=seen, waiting=waiting, unseen=unseen, group=group, number=number, call=call,
            why=f"{held}, which {_ranks(seen)} {_verb(seen, 'has', 'have')} not called{rest}",
            confidence=LIKELY if unseen else SURE,
        )  # fmt: skip
    return Comparison(
        kind="missing",
        waiting=waiting,
        unseen=unseen,
        group=group,
        number=number,
        call=call,
        confidence=VAGUE,
        why=f"{held}, and there is no dump of {_ranks(unseen)}",
    )


def _all_called(groups: Sequence[_Group]) -> Comparison:
    """Every call that waits was made by all: is it the same call, and does its kernel run?"""
    waited = [group for group in groups if group.waits]
    if not waited:
        return Comparison(kind="quiet", why="no call waits in any dump")
    for group in waited:
        if (found := _mismatch(group)) is not None:
            return found
    group = min(waited, key=lambda one: (min(_age(waiting) for waiting in one.waits.values()), one.name))
    number = min(waiting.number for waiting in group.waits.values())
    held = {rank: waiting for rank, waiting in group.waits.items() if waiting.number == number}
    call, ranks = next(iter(held.values())).call, tuple(sorted(held))
    what = f"{call} number {number} of group {group.words()}"
    running = tuple(rank for rank in ranks if held[rank].state == "started")
    behind = tuple(rank for rank in ranks if held[rank].state == "scheduled")
    if running and behind and len(behind) <= len(running):
        return Comparison(
            kind="behind", culprits=behind, waiting=running, group=group.words(), number=number, call=call,
            why=f"{what} runs on {_ranks(running)}, and {_ranks(behind)} {_verb(behind, 'has', 'have')} called it but "
                "not begun: the GPU there is busy with something before it",
            confidence=LIKELY,
        )  # fmt: skip
    return Comparison(
        kind="network", waiting=ranks, group=group.words(), number=number, call=call, confidence=LIKELY,
        why=f"all ranks have called {what} and it does not end on {_ranks(ranks)}: no rank is missing; look at links, "
            "network cards and GPUs",
    )  # fmt: skip


def _mismatch(group: _Group) -> Comparison | None:
    """The ranks that called something else at one place of the sequence than most others."""
    number = min(waiting.number for waiting in group.waits.values())
    called = {
        rank: _signature(waiting) for rank, waiting in sorted(group.waits.items())
        if waiting.number == number and not waiting.p2p
    }  # fmt: skip
    kinds = Counter(called.values()).most_common()
    if len(kinds) < 2:
        return None
    usual = kinds[0][0]
    odd = tuple(rank for rank, signature in called.items() if signature != usual)
    tie = kinds[0][1] == kinds[1][1]
    words = [f"{_ranks(_with(called, signature))} called {signature}" for signature, _ in kinds[:3]]
    return Comparison(
        kind="mismatch", culprits=() if tie else odd, waiting=tuple(called), group=group.words(), number=number,
        call=usual, confidence=LIKELY if tie else SURE,
        why=f"at number {number} of group {group.words()} the ranks did not call the same: {'; '.join(words)}",
    )  # fmt: skip


def _signature(waiting: Waiting) -> str:
    return f"{waiting.call} {waiting.shape}" if waiting.call in EVEN and waiting.shape else waiting.call


def _with(called: Mapping[int, str], signature: str) -> Iterable[int]:
    return (rank for rank, one in called.items() if one == signature)


def _age(waiting: Waiting) -> float:
    """What orders calls by when they were made; one without a time comes last."""
    return waiting.since if waiting.since is not None else float("inf")


def _at(waiting: Waiting) -> str:
    return f" (called at {waiting.where})" if waiting.where else ""


def _ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-6`; a long list is cut."""
    numbers = sorted(ranks)
    words = spans(numbers)
    if len(words) > 60:
        words = f"{words[:60].rpartition(',')[0]} and more, {len(numbers)} altogether"
    return f"rank {words}" if len(numbers) == 1 else f"ranks {words}"


def _verb(ranks: Sequence[int], one: str, many: str) -> str:
    return one if len(ranks) == 1 else many
