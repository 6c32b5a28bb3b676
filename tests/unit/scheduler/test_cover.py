"""Counts on real GPUs: what a node costs, and several."""

import pytest

from gpuguard.scheduler.cover import Ground, Part, Survey, Victim, enough, fitting, needed, relieved
from gpuguard.scheduler.plan import Share


def share(node: str, mask: int, milli: int = 1000, cpus: int = 0, memory: int = 0) -> Share:
    return Share(node, mask, milli, cpus, memory)


def victim(name: str, price: int, *shares: Share) -> Victim:
    return Victim(id=name, price=price, shares=shares)


def ground(node: str = "n0", free: int = 0, usable: int = 0xFF, loads: tuple[int, ...] = (), cpus: int = 0) -> Ground:
    return Ground(node=node, usable=usable, free=free, loads=loads, cpus=cpus)


def names(victims: tuple[Victim, ...]) -> list[str]:
    return [one.id for one in victims]


def test_a_gpu_that_must_not_be_used_is_never_won() -> None:
    sick = ground(usable=0b0111)
    assert fitting(Part(gpus=1), sick) == 0
    assert not enough(Part(gpus=4), sick, [share("n0", 0b1111)])
    assert enough(Part(gpus=3), sick, [share("n0", 0b1111)])


def test_a_shared_gpu_is_whole_when_all_have_left() -> None:
    node = ground(loads=(200, 1000), free=0b10, usable=0b11)
    third, half = share("n0", 0b01, 300), share("n0", 0b01, 500)
    assert not enough(Part(gpus=2), node, [half])
    assert enough(Part(gpus=2), node, [third, half])
    assert enough(Part(gpus=2, milli=700), node, [half])
    assert not enough(Part(gpus=2, milli=701), node, [half])


def test_of_a_stranger_who_shares_the_gpu_enough_stays() -> None:
    # 300 are held by somebody who may not go.
    node = ground(loads=(0,), usable=0b1)
    mine = victim("a", 1, share("n0", 0b1, 700))
    assert Survey([mine]).per_node(Part(gpus=1), [node], 1) == []
    assert relieved(node, mine.shares).loads == (700,)


def test_the_cheapest_of_a_node_is_not_the_cheapest_first() -> None:
    # From the cheapest up it would be a and b, 70.
    jobs = [
        victim("a", 30, share("n0", 0b1)),
        victim("b", 40, share("n0", 0b110)),
        victim("c", 45, share("n0", 0b111000)),
    ]
    ((price, _, cut),) = Survey(jobs).per_node(Part(gpus=3), [ground()], 5)
    assert (price, names(cut.victims)) == (45, ["c"])


def test_nodes_come_by_price_then_by_place() -> None:
    grounds = [ground("n0"), ground("n1"), ground("n2", free=0b1), ground("n3")]
    jobs = [victim(f"j{n}", price, share(f"n{n}", 0b11)) for n, price in enumerate((20, 10, 50, 10))]
    found = Survey(jobs).per_node(Part(gpus=1), grounds, 9)
    assert [(price, number) for price, number, _ in found] == [(0, 2), (10, 1), (10, 3), (20, 0)]
    assert len(Survey(jobs).per_node(Part(gpus=1), grounds, 2)) == 2


def test_cores_can_be_what_lacks() -> None:
    jobs = [
        victim("cheap", 10, share("n0", 0b1, cpus=1000)),
        victim("cores", 20, share("n0", 0b10, cpus=9000)),
        victim("none", 5, share("n0", 0, cpus=500)),
    ]
    part = Part(gpus=1, cpus=9500)
    ((price, _, cut),) = Survey(jobs).per_node(part, [ground()], 1)
    assert (price, names(cut.victims)) == (25, ["none", "cores"])
    assert Survey(jobs).per_node(Part(gpus=1, cpus=11_000), [ground()], 1) == []


def test_a_node_that_only_seems_cheap_does_not_win() -> None:
    grounds = [ground("n0"), ground("n1")]
    jobs = [
        victim("a", 10, share("n0", 0b1, cpus=0)),
        victim("b", 90, share("n0", 0b10, cpus=4000)),
        victim("c", 50, share("n1", 0b1, cpus=4000)),
    ]
    found = Survey(jobs).per_node(Part(gpus=1, cpus=4000), grounds, 2)
    assert [(price, number) for price, number, _ in found] == [(50, 1), (90, 0)]


def test_a_job_on_two_nodes_is_paid_once() -> None:
    grounds = [ground("n0", usable=0xF), ground("n1", usable=0xF), ground("n2", usable=0xF)]
    both = victim("both", 8, share("n0", 0xF), share("n1", 0xF))
    single = victim("single", 9, share("n2", 0xF))
    cover = Survey([both, single]).gang([Part(nodes=2, gpus=4)], grounds)
    assert cover is not None
    assert (cover.nodes, names(cover.victims)) == (("n0", "n1"), ["both"])


def test_a_node_costs_less_once_its_wide_job_has_gone() -> None:
    grounds = [ground("n0", usable=0xF), ground("n1", usable=0xF), ground("n2", usable=0xF)]
    wide, rest = victim("wide", 8, share("n0", 0xF), share("n1", 0b0011)), victim("rest", 2, share("n1", 0b1100))
    single = victim("single", 9, share("n2", 0xF))
    # From n1 both would have to go for 10, but the first has paid for the wide one.
    cover = Survey([wide, rest, single]).gang([Part(nodes=2, gpus=4)], grounds)
    assert cover is not None
    assert (cover.nodes, names(cover.victims)) == (("n0", "n1"), ["rest", "wide"])


def test_whole_nodes_and_a_rest_on_one_more() -> None:
    grounds = [ground(f"n{n}", usable=0xF) for n in range(4)]
    jobs = [victim(f"j{n}", 10 + n, share(f"n{n}", 0b1111)) for n in range(3)]
    jobs += [victim("small", 3, share("n3", 0b11)), victim("large", 30, share("n3", 0b1100))]
    cover = Survey(jobs).gang([Part(gpus=2), Part(nodes=2, gpus=4)], grounds)
    assert cover is not None
    assert (cover.nodes, names(cover.victims)) == (("n0", "n1", "n3"), ["small", "j0", "j1"])
    assert Survey(jobs).gang([Part(nodes=5, gpus=1)], grounds) is None


def test_the_dear_are_let_off_first() -> None:
    jobs = [victim("cheap", 1, share("n0", 0b1)), victim("dear", 9, share("n0", 0b10))]
    assert names(needed([(Part(gpus=1), ground())], jobs)) == ["cheap"]


@pytest.mark.parametrize("steps", [0, 5])
def test_without_steps_the_answer_is_still_one_from_which_nobody_can_be_left_out(steps: int) -> None:
    jobs = [victim(f"j{n:02}", 10 + n, share("n0", 1 << n, cpus=100 * n)) for n in range(8)]
    survey = Survey(jobs)
    survey.steps = steps
    part = Part(gpus=2, cpus=1200)
    ((price, _, cut),) = survey.per_node(part, [ground()], 1)
    assert needed([(part, ground())], list(cut.victims)) == cut.victims
    exact = Survey(jobs).per_node(part, [ground()], 1)[0][0]
    assert exact <= price
    # 5 + 7 and no other two reach 1,200 for less.
    assert exact == 15 + 17


def test_more_jobs_than_are_searched() -> None:
    # 40 jobs share 8 GPUs: five on each.
    jobs = [victim(f"j{n:02}", 100 + n, share("n0", 1 << n % 8, 200)) for n in range(40)]
    ((price, _, cut),) = Survey(jobs).per_node(Part(gpus=1), [ground(loads=(0,) * 8)], 1)
    assert price == sum(one.price for one in cut.victims)
    assert len(cut.victims) == 5
