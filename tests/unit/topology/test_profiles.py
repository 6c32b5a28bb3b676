"""Profiles of machines: what a file may say, what a site's settings change, and what is learned and read again."""

import msgspec
import pytest

from gpuguard.errors import ConfigInvalid
from gpuguard.model.ids import NODE, SubjectId
from gpuguard.runtime.assembly import RulesFolder
from gpuguard.topology.drift import compare
from gpuguard.topology.learning import doubts, learn
from gpuguard.topology.profiles import Expected, expect, parse, parse_learned
from gpuguard.topology.state import links_up, redirecting
from tests.support.wirings import H100_BUSES, Rows, graph, h100x8, l40sx4

PROFILES = parse(RulesFolder("topology_drift").texts("topology"))
DATE = "2025-06-01"


def gpu(n: int) -> SubjectId:
    return SubjectId(f"gpu:0000:{H100_BUSES[n]}:00.0")


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "words"), [
    ("[a]\nsource = 'x'\ngpu = 8", "[a]: Object contains unknown field `gpu`"),
    ("[a]\nsource = 'x'\ngpus = 'eight'", "[a]: Expected `int | null`, got `str` - at `$.gpus`"),
    ("[a]\nsource = 'x'\nacs = 'on'", "[a]: Invalid enum value 'on' - at `$.acs`"),
    ("[a]\nsource = 'x'\npairs = 'NV'", "[a]: pairs: no cell of a matrix: 'NV'"),
    ("[a]\ngpus = 8", "[a]: source: it says nothing"),
    ("[a]\nsource = 'x'\nnuma_nodes = 2", "[a]: numa_nodes: only a learned profile has it"),
    ("a = 1", "[a]: Expected `object`, got `int`"),
    ("[a", "rules/topology/f.toml:"),
])  # fmt: skip
def test_each_mistake_of_a_profile_names_file_key_and_a_next_step(text: str, words: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        parse({"f": text})
    (mistake,) = caught.value.mistakes
    assert words in mistake
    assert mistake.startswith("rules/topology/f.toml:")
    assert any(step in mistake for step in ("correct", "delete", "write", "tell"))


def test_all_mistakes_come_at_once() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        parse({"f": "[a]\ngpus = 1\n[b]\nsource = 'x'\nx = 1", "g": "[a]\nsource = 'x'"})
    assert len(caught.value.mistakes) == 3
    with pytest.raises(ConfigInvalid) as caught:
        parse_learned("[machine]\nx = 1\n[gpu.a]\nx = 1\n[gpu.b]\nnuma = 'x'\n[nick.mlx5_0]\n", "site.toml")
    assert len(caught.value.mistakes) == 4
    assert all(mistake.startswith("site.toml: [") for mistake in caught.value.mistakes)


@pytest.mark.parametrize("text", [
    "gpu = 3", "[matrix]\ndevices = ['a']\ncells = []", "[matrix]\ndevices = ['a', 'b']\ncells = ['X', 'X']",
    "[matrix]\ndevices = ['a']\ncells = ['Y']", "[machine]\nacs = 'on'", "\0", "[gpu", "a = " + "[" * 20000,
    "[nic.a]\npath = 'x'", "[nic.a]\nuuid = 3", "[gpu.a]", "[gpu.'0000:1b:00.0']\n[gpu.'00000000:1B:00.0']",
    "[machine]\nnuma_nodes = " + "9" * 5000, "[machine]\nnuma_nodes = 0x" + "f" * 20000, "[nic.a]\nnuma = -1",
    "a." * 60000 + "a = 1", "x = {" + "a." * 60000 + "a = 1}", "x = {" + "'a'." * 40000 + "a = 1}",
])  # fmt: skip
def test_what_a_learned_file_may_not_say(text: str) -> None:
    with pytest.raises(ConfigInvalid):
        parse_learned(text)


def test_a_gpu_is_known_by_its_address_however_it_is_written() -> None:
    text = learn(graph(h100x8()), DATE)
    spelled = text.replace('"0000:1b:00.0"', '"00000000:1B:00.0"')
    assert spelled != text
    assert compare(graph(h100x8()), parse_learned(spelled)) == ()


# --- what is expected -----------------------------------------------------------------------------------------------


def expected(rows: Rows) -> Expected:
    found = expect(rows, PROFILES)
    assert found is not None
    return found


def test_a_machine_without_a_profile_has_no_expectation() -> None:
    rows = h100x8()
    for row in rows.values():
        row.pop("machine_profile", None)
        row.pop("nvlinks_expected", None)
    assert expect(rows, PROFILES) is None
    rows[NODE]["machine_profile"] = "of tomorrow"
    assert expect(rows, PROFILES) is None
    assert expect({}, PROFILES) is None


def test_a_sites_settings_come_before_the_profile() -> None:
    rows = h100x8()
    rows[NODE] |= {"machine_profile": "dgx-h100", "gpus_expected": 6, "ib_ports_expected": 4}
    rows[gpu(0)] |= {"pcie_link_width_expected": 8, "pcie_link_generation_expected": 4}
    for n in range(8):
        rows[gpu(n)]["nvlinks_expected"] = 12
    made = expected(rows)
    assert (made.gpus, made.nics, made.nvlinks, made.pcie_width, made.pcie_generation) == (6, 4, 12, 8, 4)
    assert (made.pairs, made.gpus_per_socket, made.addresses) == (None, (), ())
    assert made.acs == "off"


def test_settings_that_say_the_same_change_nothing() -> None:
    rows = h100x8()
    rows[NODE] |= {"machine_profile": "dgx-h100", "gpus_expected": 8, "ib_ports_expected": 8}
    assert expected(rows) == PROFILES["dgx-h100"]


def test_a_slot_of_a_card_is_not_expected_to_have_its_cards_lanes() -> None:
    rows = l40sx4()
    for name, row in rows.items():
        if name.startswith("gpu:"):
            row |= {"pcie_link_width_expected": 16, "pcie_link_width": 8, "pcie_link_width_limit": 8}
    assert expected(rows).pcie_width is None


def test_settings_alone_are_no_profile() -> None:
    """Whoever sets a number alone is told by the checks that count."""
    assert expect({NODE: {"gpus_expected": 4}, gpu(0): {"nvlinks_expected": 12}}, PROFILES) is None


# --- a learned file -------------------------------------------------------------------------------------------------


def test_what_was_learned_is_read_again_whole() -> None:
    made = parse_learned(learn(graph(h100x8()), DATE))
    assert list(made.slots) == [f"0000:{bus}:00.0" for bus in H100_BUSES]
    assert list(made.cards) == [f"mlx5_{n}" for n in range(8)]
    first, card = made.slots["0000:1b:00.0"], made.cards["mlx5_0"]
    assert (first.name, first.uuid) == ("GPU0", "GPU-00000000-0000-4000-8000-000000000000")
    assert (first.serial, first.numa) == ("1650000000000", 0)
    assert (first.pcie_width, first.pcie_generation, first.nvlinks) == (16, 5, 18)
    assert first.path == ("pci0000:18", "0000:18:01.0", "0000:19:00.0", "0000:1a:00.0")
    assert (card.pci, card.guid, card.numa, card.pcie_width) == ("0000:1c:00.0", "5c25:7303:0001:0000", 0, 16)
    assert (made.profile, made.numa_nodes, made.acs, made.p2p) == ("hgx-h100-8", 2, "off", "OK")
    assert made.matrix.cells[0].split()[:9] == ["X", *["NV18"] * 7, "PIX"]


def test_the_head_says_what_it_is_when_and_how_to_edit_it() -> None:
    head = learn(graph(h100x8()), DATE).partition("[")[0]
    assert "learned by gpuguard on 2025-06-01 on node17" in head
    assert "What is deleted is not expected any more" in head
    assert all(line.startswith("#") or not line for line in head.splitlines())


def test_limits_are_learned_and_not_what_a_link_does_at_rest() -> None:
    rows = h100x8()
    rows[gpu(0)] |= {"pcie_link_generation": 1}
    rows[gpu(1)] |= {"pcie_link_generation_limit": None}
    made = parse_learned(learn(graph(rows), DATE))
    assert made.slots["0000:1b:00.0"].pcie_generation == 5
    assert made.slots["0000:43:00.0"].pcie_generation is None


def test_what_is_deleted_is_not_expected() -> None:
    text = learn(graph(h100x8()), DATE)
    rows = h100x8()
    rows[gpu(0)] |= {"nvlink_up": (0,) * 18, "pcie_link_width": 4, "gpu_numa_node": 1, "gpu_uuid": "GPU-other"}
    del rows[SubjectId("nic:mlx5_3")]
    head, first, rest = text.partition('[gpu."0000:43:00.0"]')
    kept = [line for line in head.splitlines() if not line.startswith(("nvlinks", "pcie_width", "numa =", "uuid"))]
    cut = "\n".join(kept) + "\n" + first + rest
    before, _, after = cut.partition('[nic."mlx5_3"]')
    cut = before + after[after.index("[nic") :]
    cut = cut[: cut.index("[matrix]")]
    assert compare(graph(rows), parse_learned(cut)) == ()
    assert len(compare(graph(rows), parse_learned(text))) == 5


def test_a_device_whose_table_was_deleted_may_come_and_go() -> None:
    text = learn(graph(h100x8()), DATE)
    for table in ('[nic."mlx5_7"]', '[gpu."0000:df:00.0"]'):
        before, _, after = text.partition(table)
        text = before + after[after.index("\n[") + 1 :]
    assert compare(graph(h100x8()), parse_learned(text)) == ()
    rows = h100x8()
    del rows[SubjectId("nic:mlx5_7")], rows[gpu(7)]
    assert compare(graph(rows), parse_learned(text)) == ()


def test_a_cell_that_was_crossed_out_is_not_expected() -> None:
    text = learn(graph(h100x8()), DATE).replace("PIX", "-  ")
    rows = h100x8()
    del rows[SubjectId("nic:mlx5_0")]["nic_pci_path"]
    assert compare(graph(rows), parse_learned(text)) == ()


def test_of_the_profile_that_it_names_the_whole_holds_and_nothing_of_a_device() -> None:
    rows = h100x8()
    text = learn(graph(rows), DATE).replace('acs = "off"\n', "").replace("hgx-h100-8", "dgx-h100")
    rows[NODE]["topology_learned"] = text.replace("nvlinks = 18\n", "")
    made = expected(rows)
    assert made.acs == "off"
    assert (made.gpus, made.nvlinks, made.pairs, made.nics) == (None, None, None, None)
    rows[NODE]["topology_learned"] = text.replace('profile = "dgx-h100"\n', "")
    assert expected(rows).acs is None


def test_a_file_that_lists_no_gpus_adds_to_its_profile() -> None:
    made = expected({NODE: {"topology_learned": '[machine]\nprofile = "google-a3-high"\nnuma_nodes = 2\n'}})
    assert (made.gpus, made.pairs, made.numa_nodes) == (8, "NV18", 2)


def test_a_file_that_names_a_profile_that_is_none_says_so() -> None:
    with pytest.raises(ConfigInvalid, match=r"none is called 'hgx-h101'.*hgx-h100-8"):
        expect({NODE: {"topology_learned": '[machine]\nprofile = "hgx-h101"\n'}}, PROFILES)


def test_an_empty_file_is_none() -> None:
    assert expect({NODE: {"topology_learned": " \n", "machine_profile": "dgx-h100"}}, PROFILES) == PROFILES["dgx-h100"]


def test_odd_names_survive() -> None:
    odd = 'mlx"5\\\n\0\x7fü\ud800]'
    rows: Rows = {SubjectId(f"nic:{odd}"): {"nic_rdma": odd, "nic_pci": "0000:01:00.0", "nic_guid": odd}}
    made = parse_learned(learn(graph(rows), "2025\n[gpu]\n"))
    (name,) = made.cards
    assert name == odd.replace("\ud800", "?")
    assert made.slots == {}


def test_a_machine_of_which_nothing_is_known_can_be_learned() -> None:
    made = parse_learned(learn(graph({}), DATE))
    assert (made.slots, made.cards, made.matrix.devices) == ({}, {}, ())


# --- doubts ---------------------------------------------------------------------------------------------------------


def test_a_whole_machine_raises_no_doubts() -> None:
    assert doubts(graph(h100x8())) == ()
    assert doubts(graph(h100x8()), PROFILES["dgx-h100"]) == ()
    assert doubts(graph(l40sx4())) == ()


def test_what_should_be_mended_first_is_said() -> None:
    rows = h100x8()
    rows[gpu(0)] |= {"nvlink_up": (0, *(1,) * 17)}
    rows[gpu(1)] |= {"pcie_link_width": 8}
    rows[gpu(2)] |= {"gpu_index": None, "gpu_up": 0}
    rows[gpu(3)] |= {"gpu_numa_node": None}
    rows[gpu(4)] |= {"mig_mode": 1}
    said = "\n".join(doubts(graph(rows)))
    for words in (
        "GPU0: NVLink 0 is down", "GPU1: its PCIe link runs on 8 lanes of 16", "GPU2 does not answer the driver",
        "the NUMA node of GPU3 is not known", "GPU4 in MIG mode",
    ):  # fmt: skip
        assert words in said


def test_a_card_without_its_bridge_has_links_down_and_that_is_no_doubt() -> None:
    rows = l40sx4()
    for name, row in rows.items():
        if name.startswith("gpu:"):
            row |= {"nvlink_peers": (None,) * 4, "nvlink_up": (0,) * 4}
    assert doubts(graph(rows)) == ()
    assert "nvlinks" not in learn(graph(rows), DATE)


def test_what_differs_from_its_kind_is_a_doubt() -> None:
    rows = h100x8()
    del rows[gpu(7)]
    assert any("the GPU at 0000:df:00.0 is gone" in words for words in doubts(graph(rows), PROFILES["dgx-h100"]))


# --- questions to the graph -----------------------------------------------------------------------------------------


def test_links_up_are_known_unknown_or_none() -> None:
    rows = h100x8()
    rows[gpu(0)]["nvlink_up"] = (1, 0, None, *(1,) * 15)
    rows[gpu(1)]["mig_mode"] = 1
    rows[gpu(2)] |= {"nvlink_up": None, "nvlink_peers": None}
    rows[gpu(3)] = {k: v for k, v in rows[gpu(3)].items() if k not in ("nvlink_up", "nvlink_peers")}  # 18 to switches
    made = graph(rows)
    assert [links_up(made, place) for place in (0, 1, 2, 3, 4, 8)] == [
        (16, 1), None, None, (18, 71), (18, 0), None,
    ]  # fmt: skip


def test_ports_that_redirect_count_below_a_switch_alone() -> None:
    rows = h100x8()
    assert redirecting(graph(rows)) == ()
    rows[SubjectId("bridge:0000:18:01.0")]["bridge_p2p_redirect"] = 1  # a root port
    assert redirecting(graph(rows)) == ()
    for name in ("bridge:0000:1a:00.0", "bridge:0000:1a:01.0"):
        rows[SubjectId(name)]["bridge_p2p_redirect"] = 1
    found = redirecting(graph(rows))
    assert found == (("0000:1a:00.0", "GPU0", "mlx5_0"), ("0000:1a:01.0", "GPU0", "mlx5_0"))
    assert redirecting(graph(l40sx4())) is None


def test_ports_of_which_nobody_knows_are_not_off() -> None:
    rows = h100x8()
    for row in rows.values():
        if "bridge_p2p_redirect" in row:
            row["bridge_p2p_redirect"] = None
    assert redirecting(graph(rows)) is None
    assert "acs" not in learn(graph(rows), DATE)


def test_the_profiles_are_frozen() -> None:
    with pytest.raises(AttributeError):
        PROFILES["dgx-h100"].gpus = 3  # type: ignore[misc]  # that is the point
    assert msgspec.structs.replace(PROFILES["dgx-h100"], gpus=3).gpus == 3
