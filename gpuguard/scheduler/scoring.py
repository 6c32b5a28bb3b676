"""The seam between placement and the shelf of scorers: what they see, what is asked, what they say.

A scorer is one term of the choice of a node. It returns numbers and commits nothing; terms are compared in order, the
next one only among nodes that are equal in the one before, and the first node wins at last: no chance, no floats.
"""

from collections.abc import Iterable
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gpuguard.scheduler.request import WHOLE

Ints = npt.NDArray[np.int64]


class Want(NamedTuple):
    """What one node must give: `gpus` whole ones, or `milli` of one, or neither (work for CPUs).

    Shape   kinds: a bit for the code of each GPU type that will do; 0: any
    Units   thousandths of a GPU and of a core, MiB
    """

    gpus: int = 0
    milli: int = 0
    cpus: int = 0
    memory: int = 0
    kinds: int = 0


class Vacancy(NamedTuple):
    """What is free on each node, as live arrays: whoever owns them changes them in place and says `changed`.

    Shape   milli: node x GPU, thousandths that new work may take; 0 for a GPU that is whole in use, bad, held or not
            there. kind: code of the node's GPU type. size, cores: what the node has in all. last: when all who are on
            the node will have left, as their walltimes promise. An amount that does not constrain is very large
    Units   thousandths of a GPU and of a core, MiB, seconds
    """

    milli: npt.NDArray[np.int32]
    cpus: Ints
    memory: Ints
    kind: Ints
    size: Ints
    cores: Ints
    last: Ints


class Scorer(Protocol):
    """One term: less is better."""

    name: ClassVar[str]

    def observe(self, want: Want) -> None:
        """Something was submitted; also what will not be placed counts."""

    def changed(self, node: int) -> None:
        """What is free on this node is another than before."""

    def score(self, want: Want, nodes: Ints, until: int = 0) -> Ints:
        """One number for each of these nodes, all of which can give what is wanted.

        Shape   until: when it will leave at the latest, 0: nobody knows
        """

    def card(self, want: Want, node: int, allowed: int) -> int | None:
        """The GPU, of those with a bit in `allowed`, that a share should go to; None: no opinion."""


def best(want: Want, nodes: Ints, terms: Iterable[Scorer], until: int = 0) -> int:
    """The node that the terms, asked in order, prefer; among equals the first."""
    for term in terms:
        if len(nodes) == 1:
            break
        scores = term.score(want, nodes, until)
        nodes = nodes[scores == scores.min()]
    return int(nodes[0])


def tightest_card(free: list[int], milli: int, allowed: int) -> int | None:
    """The fullest GPU that still has so much, the first of equal ones; None where there is none.

    Units   thousandths of a GPU
    """
    chosen, least = None, WHOLE + 1
    for card, amount in enumerate(free):
        if allowed >> card & 1 and milli <= amount < least:
            chosen, least = card, amount
    return chosen
