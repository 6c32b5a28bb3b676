"""What must hold of differences, whatever is known of the machine."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Value
from gpuguard.model.topology import LEVELS
from gpuguard.runtime.assembly import RulesFolder
from gpuguard.topology.drift import compare, judge
from gpuguard.topology.learning import doubts, learn
from gpuguard.topology.profiles import parse, parse_learned
from tests.support.wirings import H100_BUSES, Rows, graph, h100x8

EXAMPLES = 150
PROFILES = parse(RulesFolder("topology_drift").texts("topology"))
LEARNED = parse_learned(learn(graph(h100x8()), "2025-06-01"))
# Whether a GPU is listed by the driver is no fact that may be missing: without it the GPU does not answer.
COLUMNS = sorted({(name, column) for name, row in h100x8().items() for column in row if column != "gpu_index"})
ABSURD: tuple[Value, ...] = (
    0,
    1,
    -1,
    7,
    2**40,
    0.5,
    float("inf"),
    "",
    "N/A",
    "pci0000:00",
    (),
    (1,),
    (None, None),
    ("0000:1b:00.0", 0),
)


def changed(changes: list[tuple[tuple[SubjectId, str], Value | type]]) -> Rows:
    """The machine with these columns changed; `object` stands for a column that is absent."""
    rows = h100x8()
    for (name, column), value in changes:
        if value is object:
            rows[name].pop(column, None)
        else:
            rows[name][column] = value  # type: ignore[assignment]  # it is no type
    return rows


blank = st.lists(st.tuples(st.sampled_from(COLUMNS), st.sampled_from((None, object))), max_size=40)
anything = st.lists(st.tuples(st.sampled_from(COLUMNS), st.sampled_from((None, object, *ABSURD))), max_size=40)


@settings(max_examples=EXAMPLES, deadline=None)
@given(blank)
def test_what_is_unknown_is_no_difference(changes: list[tuple[tuple[SubjectId, str], Value | type]]) -> None:
    made = graph(changed(changes))
    for expected in (LEARNED, PROFILES["dgx-h100"], PROFILES["hgx-h100-8"]):
        assert compare(made, expected) == ()


@settings(max_examples=EXAMPLES, deadline=None)
@given(anything)
def test_any_machine_can_be_learned_and_does_not_differ_from_itself(
    changes: list[tuple[tuple[SubjectId, str], Value | type]],
) -> None:
    """But for a link that is narrower than its limit: that is told, and was warned of."""
    made = graph(changed(changes))
    expected = parse_learned(learn(made, "2025-06-01"))
    differences = compare(made, expected)
    assert {one.kind for one in differences} <= {"pcie_width"}
    warned = " ".join(doubts(made))
    assert all(f"{one.device}: its PCIe link" in warned for one in differences)


@settings(max_examples=EXAMPLES, deadline=None)
@given(anything)
def test_every_difference_is_one_line_and_known(changes: list[tuple[tuple[SubjectId, str], Value | type]]) -> None:
    made = graph(changed(changes))
    for expected in (LEARNED, PROFILES["dgx-h100"]):
        verdict = judge(made, expected, {f"gpu:0000:{bus}:00.0" for bus in H100_BUSES})
        for one in verdict.differences:
            assert "\n" not in one.words
            assert one.words.strip() == one.words != ""
            assert (one.kind, one.subject) not in verdict.unknown
            assert one.subject == "node" or one.subject.startswith(("gpu:", "nic:"))


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=7, unique=True), st.integers(1, 18))
def test_as_many_differences_as_gpus_lost_links_and_no_more(which: list[int], down: int) -> None:
    rows = h100x8()
    for n in which:
        rows[SubjectId(f"gpu:0000:{H100_BUSES[n]}:00.0")]["nvlink_up"] = (*(0,) * down, *(1,) * (18 - down))
    differences = compare(graph(rows), LEARNED)
    assert [(one.kind, one.found) for one in differences] == [("nvlinks", str(18 - down))] * len(which)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.permutations(range(8)))
def test_the_order_in_which_gpus_are_counted_is_no_difference(order: list[int]) -> None:
    rows = h100x8()
    for n, index in enumerate(order):
        rows[SubjectId(f"gpu:0000:{H100_BUSES[n]}:00.0")]["gpu_index"] = index
    for expected in (LEARNED, PROFILES["dgx-h100"]):
        assert compare(graph(rows), expected) == ()


def test_the_levels_are_those_that_a_profile_may_name() -> None:
    assert {one.nic_level for one in PROFILES.values()} <= {None, *LEVELS}
