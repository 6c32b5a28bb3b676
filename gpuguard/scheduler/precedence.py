"""Jobs that name each other, put in an order in which each comes behind those it waits for.

Jobs of one instant may name each other in any order. Depth first and without recursion: 10,000 in a row are no depth.
"""

from collections.abc import Callable, Iterable, Sequence

SHOWN = 6  # jobs of a cycle that a sentence names


def parents_first(
    jobs: Iterable[str], parents: Callable[[str], Iterable[str]]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The jobs, each behind its parents, else in their order; and those that wait for themselves, or for such a one.

    Shape   of the latter each with the way round: "a -> b -> a". parents: also of jobs that are not in the list; those
            that are found on the way count as the others do
    """
    order: list[str] = []
    stuck: dict[str, str] = {}
    free: dict[str, None] = {}
    place: dict[str, int] = {}  # of those on the way, from where we began
    for root in jobs:
        if root in free or root in stuck:
            continue
        way, stack = [root], [iter(parents(root))]
        place[root] = 0
        while stack:
            name = way[-1]
            for parent in stack[-1]:
                if parent in place:
                    stuck.setdefault(name, _round(way, place[parent]))
                elif parent in stuck:
                    stuck.setdefault(name, stuck[parent])
                elif parent not in free:
                    place[parent] = len(way)
                    way.append(parent)
                    stack.append(iter(parents(parent)))
                    break
            else:
                stack.pop()
                way.pop()
                del place[name]
                if name not in stuck:
                    free[name] = None
                    order.append(name)
                elif way:
                    stuck.setdefault(way[-1], stuck[name])
    return tuple(order), stuck


def _round(way: Sequence[str], first: int) -> str:
    shown = way[first : first + SHOWN]
    more = len(way) - first - len(shown)
    return " -> ".join([*shown, *([f"{more} more"] if more else []), way[first]])
