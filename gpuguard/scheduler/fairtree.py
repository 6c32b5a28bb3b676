"""Fair Tree: who is served first, by what each level of the tree of accounts was promised and has used.

An account is a path ("lab/team"); its users and its sub-accounts are siblings. With S, its shares over those of its
siblings, and U, its use over theirs, a node has the level fairness LF = S / U. Siblings are walked by LF, largest first
and depth first, so nobody in an account that is served worse ever goes before anybody in one that is served better.
Accounts of one LF are walked as if they were one, users of one LF share a rank, and a user with the LF of an account
shares the rank of that account's first. No use at all is an infinite LF; no shares are 0, which is last.

That walk is the order of the lists of LF from the root to the user, a shorter list first: one sort, no recursion.

Source  https://slurm.schedmd.com/fair_tree.html
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gpuguard.errors import ConfigInvalid
from gpuguard.scheduler.usage import Holder

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# LF is compared to 40 bits, so that rounding on the way to the same use does not part those who are equal.
_BITS = 40.0
_ABOVE = -1.0  # where a path has ended: before every value that a deeper one may have


def account_path(account: str) -> tuple[str, ...]:
    """The names from the root to the account: "lab/team" is ("lab", "team")."""
    return tuple(part for part in account.split("/") if part)


def check_shares(shares: Mapping[str, float]) -> None:
    """Nothing, when every share is a number that can be one.

    Shape   keys: an account's path, "path:user" for a user in it, ":user" for a user wherever else he is
    Raises  ConfigInvalid, with every mistake
    """
    mistakes = [
        f"shares.{name}: {share} is no share; give a number from 0 up (1 is what everybody has)"
        for name, share in shares.items()
        if not 0 <= share < float("inf")
    ]
    if mistakes:
        raise ConfigInvalid(mistakes)


class FairTree:
    """The tree of the holders that are known, with its shares. Others have no part, whatever shares they were given."""

    __slots__ = ("columns", "gather", "holders", "names", "parents", "paths", "portions", "size")

    def __init__(self, holders: Sequence[Holder], shares: Mapping[str, float]) -> None:
        """`holders` in the order in which their use will be given; what comes out does not depend on it."""
        places = sorted(range(len(holders)), key=holders.__getitem__)
        self.size = len(holders)
        self.holders = tuple(holders[place] for place in places)
        self.gather: Ints = np.array(places, dtype=np.int64)
        names, parents, weights = [""], [0], [0.0]  # the root, which has no siblings
        accounts: dict[tuple[str, ...], int] = {(): 0}
        paths: list[list[int]] = []
        for account, user in self.holders:
            parts = account_path(account)
            nodes = []
            for depth in range(1, len(parts) + 1):
                part = parts[:depth]
                if part not in accounts:
                    path = "/".join(part)
                    accounts[part] = len(names)
                    names.append(f"account {path}")
                    parents.append(accounts[part[:-1]])
                    weights.append(shares.get(path, 1.0))
                nodes.append(accounts[part])
            nodes.append(len(names))
            names.append(f"user {user}")
            parents.append(accounts[parts])
            weights.append(shares.get(f"{'/'.join(parts)}:{user}", shares.get(f":{user}", 1.0)))
            paths.append(nodes)
        self.names = tuple(names)
        self.parents: Ints = np.array(parents, dtype=np.int64)
        share = np.array(weights)
        together = np.bincount(self.parents, weights=share)[self.parents]
        # The part of what the siblings have; 0 where nobody has any.
        self.portions: Floats = np.divide(share, together, out=np.zeros_like(share), where=together > 0)
        depth = max(map(len, paths), default=0)
        self.paths: Ints = np.array([path + [-1] * (depth - len(path)) for path in paths], dtype=np.int64)
        self.paths = self.paths.reshape(self.size, depth)
        self.columns = []
        for column in self.paths.T:
            leaves = np.flatnonzero(column >= 0)
            self.columns.append((leaves, column[leaves]))

    def standing(self, used: Floats) -> "Standing":
        """Who is served first, given what each holder has used."""
        return Standing(self, used[self.gather])


class Standing:
    """The order at an instant. `factors`: 1.0 for who is served first, and 1 / users for who stands alone as last.

    Units   used: standard-card-seconds, decayed, in the order of the tree's holders
    """

    __slots__ = ("_keys", "_order", "_row", "_slices", "factors", "parts", "tree", "used")

    def __init__(self, tree: FairTree, used: Floats) -> None:
        self.tree, self.used = tree, used
        count = len(tree.names)
        load = np.zeros(count)
        for leaves, nodes in tree.columns:
            load += np.bincount(nodes, weights=used[leaves], minlength=count)
        siblings = np.bincount(tree.parents, weights=load, minlength=count)[tree.parents]
        self.parts: Floats = np.divide(load, siblings, out=np.zeros(count), where=load > 0)
        """U of every node."""
        # 1 / LF, so that no use is 0 and needs no infinity; the smallest goes first.
        burden = np.full(count, np.inf)
        np.divide(self.parts, tree.portions, out=burden, where=tree.portions > 0)
        self._slices: Floats = _rounded(burden)
        keys = np.where(tree.paths >= 0, self._slices[tree.paths], _ABOVE)
        self._keys: Floats = keys
        self._order: Ints = np.lexsort(keys.T[::-1]) if tree.size else np.zeros(0, dtype=np.int64)
        ordered = keys[self._order]
        # Equal to the one before; or the one before is a user that has the LF of an account whose first this is.
        tied = ((ordered[1:] == ordered[:-1]) | (ordered[:-1] == _ABOVE)).all(axis=1)
        first = np.arange(tree.size)
        first[1:][tied] = 0
        ranks = tree.size - np.maximum.accumulate(first) if tree.size else first
        factors = np.empty(tree.size)
        factors[self._order] = ranks / max(1, tree.size)
        self.factors: Mapping[Holder, float] = MappingProxyType(
            dict(zip(tree.holders, factors.tolist(), strict=True)),
        )
        self._row: dict[Holder, int] | None = None

    def factor(self, holder: Holder) -> float:
        """The holder's factor; 1.0 for one who is not known, since nothing was used."""
        return self.factors.get(holder, 1.0)

    def row(self, holder: Holder) -> int:
        """The holder's place among `tree.holders`."""
        if self._row is None:
            self._row = {known: index for index, known in enumerate(self.tree.holders)}
        return self._row[holder]

    def ahead_of(self, holder: Holder) -> Holder | None:
        """The nearest that is served before this one; None for the first, and for those who share the first's rank."""
        place = int(np.flatnonzero(self._order == self.row(holder))[0])
        mine = self.factors[holder]
        before = (self.tree.holders[int(index)] for index in self._order[:place][::-1])
        return next((other for other in before if self.factors[other] > mine), None)

    def fork(self, one: Holder, other: Holder) -> tuple[int, int] | None:
        """The two nodes that decide between these holders: the first on their ways that differ in LF; None: none does.

        Shape   also None where one way has ended in a user that has the LF of an account on the other
        """
        mine, theirs = self.row(one), self.row(other)
        for depth in range(self._keys.shape[1]):
            left, right = self._keys[mine, depth], self._keys[theirs, depth]
            if _ABOVE in (left, right):
                return None
            if left != right:
                return int(self.tree.paths[mine, depth]), int(self.tree.paths[theirs, depth])
        return None

    def fairness(self, node: int) -> float:
        """LF of a node."""
        burden = float(self._slices[node])
        return float("inf") if burden == 0 else 1 / burden


def _rounded(values: Floats) -> Floats:
    mantissa, exponent = np.frexp(values)
    rounded = np.ldexp(np.rint(np.ldexp(mantissa, int(_BITS))), exponent - int(_BITS))
    result: Floats = np.where(np.isfinite(values), rounded, values)
    return result
