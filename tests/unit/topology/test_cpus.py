"""Lists of processors, masks, and Slurm's numbers of cores."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import Absent, NotUnderstood
from gpuguard.model.numbers import spans
from gpuguard.model.topology import NumaNode, Processors, Topology
from gpuguard.topology.cpus import MOST_PROCESSORS, mask, numbering, numbers
from tests.support.layouts import interleaved, nps4, snc2_interleaved
from tests.support.wirings import graph

some = st.frozensets(st.integers(0, MOST_PROCESSORS - 1), max_size=40)


def machine(nodes: tuple[NumaNode, ...], siblings: str | None) -> Topology:
    return Topology(devices=(), levels=(), bonds=(), numa=nodes, processors=Processors(siblings=siblings))


def test_a_list_is_read_as_the_kernel_prints_it() -> None:
    assert numbers("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert numbers("") == ()
    assert spans((11, 8, 0, 1, 10, 2, 3)) == "0-3,8,10-11"
    assert spans(()) == ""


@given(some)
def test_what_is_spelled_is_read_back(found: frozenset[int]) -> None:
    assert frozenset(numbers(spans(found))) == found


@pytest.mark.parametrize(
    "text", ["a", "1-", "-1", "3-1", "1,,2", "0-99999999999", "1\x002", "0x1", "٣", "8192", "0-3:1/2"]
)
def test_what_no_kernel_prints_is_not_understood(text: str) -> None:
    with pytest.raises(NotUnderstood) as caught:
        numbers(text)
    assert caught.value.text == text


def test_a_mask_has_words_of_32_bits_up_to_the_highest_processor() -> None:
    assert mask(numbers("0-55,112-167"), 223) == "00000000,000000ff,ffffffff,ffff0000,00000000,00ffffff,ffffffff"
    assert mask((0,), 0) == "00000001"
    assert mask((33,), 63) == "00000002,00000000"


@given(some.filter(bool))
def test_a_mask_tells_the_same_as_the_list(found: frozenset[int]) -> None:
    bits = int(mask(found, max(found)).replace(",", ""), 16)
    assert {n for n in range(max(found) + 1) if bits >> n & 1} == found


@pytest.mark.parametrize(
    ("sockets", "parts", "each", "threads", "adjacent", "dealt"),
    [
        case for case in product((1, 2), (1, 2, 4), (1, 3, 8), (1, 2, 4), (False, True), (False, True))
        if not (case[4] and case[5])
    ],
)  # fmt: skip
def test_cores_are_numbered_by_socket_part_and_lowest_thread(
    sockets: int, parts: int, each: int, threads: int, adjacent: bool, dealt: bool
) -> None:
    """A machine is made core by core in Slurm's order; whatever its processors are called, its cores come out so.

    `dealt`: firmware gave out the first threads to the NUMA nodes in turn, as on many Dell machines.
    """
    cores = [(s, p, c) for s in range(sockets) for p in range(parts) for c in range(each)]
    turn = sorted(cores, key=lambda core: (core[2], core[1], core[0])) if dealt else cores
    wanted: dict[int, int] = {}
    nodes: dict[tuple[int, int], list[int]] = {}
    for number, core in enumerate(cores):
        place = turn.index(core)
        named = [place * threads + t if adjacent else place + t * len(cores) for t in range(threads)]
        wanted.update(dict.fromkeys(named, number))
        nodes.setdefault(core[:2], []).extend(named)
    numa = tuple(
        NumaNode(number=n, cpus=spans(nodes[key]), socket=key[0])
        for n, key in enumerate(sorted(nodes, key=lambda key: min(nodes[key])))
    )
    siblings = spans(cpu for cpu in wanted if wanted[cpu] == 0)
    told = numbering(machine(numa, siblings))
    assert told.core == wanted
    assert told.threads == threads
    assert [len(part) for part in told.sockets] == [parts * each] * sockets
    assert [len(part) for part in told.nodes] == [each] * (sockets * parts)


def test_threads_may_be_numbered_within_their_socket() -> None:
    numa = (NumaNode(number=0, cpus="0-7", socket=0), NumaNode(number=1, cpus="8-15", socket=1))
    told = numbering(machine(numa, "0,4"))
    assert [told.core[cpu] for cpu in (0, 4, 3, 7, 8, 12, 11, 15)] == [0, 0, 3, 3, 4, 4, 7, 7]


def test_nodes_without_processors_do_not_count() -> None:
    numa = (NumaNode(number=0, cpus="0-3", socket=0), NumaNode(number=1, cpus=None), NumaNode(number=2, cpus=""))
    assert numbering(machine(numa, "0")).core == {0: 0, 1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize(
    ("numa", "siblings", "why"),
    [
        ((), "0,4", "NUMA node has"),
        ((NumaNode(number=0, cpus="0-7", socket=0),), None, "threads of one core is not known"),
        ((NumaNode(number=0, cpus="0-3", socket=0), NumaNode(number=1, cpus="4-7")), "0", "which socket"),
        ((NumaNode(number=0, cpus="0-6", socket=0),), "0,4", "not all online"),
        ((NumaNode(number=0, cpus="0-3", socket=0), NumaNode(number=1, cpus="4-7", socket=1)), "0,4", "one NUMA node"),
        ((NumaNode(number=0, cpus="0-7", socket=0),), "0,1,4", "follows no rule"),
        ((NumaNode(number=0, cpus="0-7", socket=0),), "", "follows no rule"),
    ],
)
def test_a_machine_that_does_not_tell_enough_says_why(
    numa: tuple[NumaNode, ...], siblings: str | None, why: str
) -> None:
    with pytest.raises(Absent, match=why):
        numbering(machine(numa, siblings))


def test_a_processor_of_no_node_is_no_core() -> None:
    told = numbering(machine((NumaNode(number=0, cpus="0-3", socket=0),), "0"))
    with pytest.raises(Absent, match="processor 9"):
        told.cores((1, 9))


def test_real_layouts() -> None:
    assert sorted(numbering(graph(nps4())).cores(numbers("48-63,176-191"))) == list(range(48, 64))
    assert sorted(numbering(graph(interleaved())).cores((1, 3, 49, 51))) == [24, 25]
    assert sorted(numbering(graph(snc2_interleaved())).cores((2, 6, 34))) == [8, 9]
