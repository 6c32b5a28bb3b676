"""What a machine should have: told by PCI ids and SMBIOS, never by a name, and a site knows better."""

from pathlib import Path

import pytest

from gpuguard.errors import Absent, ConfigInvalid
from gpuguard.model.ids import NODE, SubjectId
from gpuguard.model.readings import Values
from gpuguard.runtime.assembly import RulesFolder
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.machine import QUANTITIES, Machine, Settings
from gpuguard.sources.machine.profiles import Device, Match, Profile, Seen, choose, parse
from gpuguard.sweeping.rounds import Rows
from tests.support.machines import copied, machine

PROFILES = parse(RulesFolder("machine").texts("machines"))
A100_SWITCH, H100_SWITCH = "1af1", "22a3"


def device(root: Path, pci: str, ids: str, kind: str = "0x030200") -> None:
    folder = root / "sys/bus/pci/devices" / pci
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x10de\n")
    (folder / "device").write_text(f"0x{ids}\n")
    (folder / "class").write_text(f"{kind}\n")


def firmware(root: Path, vendor: str, product: str) -> None:
    folder = root / "sys/class/dmi/id"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sys_vendor").write_text(f"{vendor}\n")
    (folder / "product_name").write_text(f"{product}\n")


def server(
    root: Path, gpus: int, ids: str, *, switches: int = 0, switch: str = H100_SWITCH,
    made: tuple[str, str] | None = ("Example", "GPU Server"),
) -> Path:  # fmt: skip
    for n in range(gpus):
        device(root, f"0000:{n + 0x10:02x}:00.0", ids)
    for n in range(switches):
        device(root, f"0000:{n + 0xC0:02x}:00.0", switch, "0x068000")
    if made is not None:
        firmware(root, *made)
    return root


def rows(root: Path, settings: Settings | None = None) -> Rows:
    return Machine(settings or Settings(), root, PROFILES).rows(ManualClock().now())


def node(root: Path, settings: Settings | None = None) -> Values:
    return rows(root, settings)[NODE]


GOOGLE, AZURE, QEMU = ("Google", "Google Compute Engine"), ("Microsoft Corporation", "Virtual Machine"), ("QEMU", "q35")


@pytest.mark.parametrize(
    ("gpus", "ids", "switches", "switch", "made", "profile", "expected"),
    [
        (8, "20b2", 6, A100_SWITCH, ("Example", "Server"), "hgx-a100-8", 8),
        (8, "20b0", 6, A100_SWITCH, ("NVIDIA", "DGXA100 920-23687-2530-000"), "dgx-a100", 8),
        (4, "20b0", 0, "", ("Example", "Server"), "hgx-a100-4", 4),
        (8, "2330", 4, H100_SWITCH, ("Example", "Server"), "hgx-h100-8", 8),
        (8, "2330", 4, H100_SWITCH, None, "hgx-h100-8", 8),
        (7, "2330", 4, H100_SWITCH, ("Example", "Server"), "hgx-h100-8", 8),
        (4, "2330", 4, H100_SWITCH, ("Example", "Server"), "hgx-h100-8", 8),
        (3, "20b0", 6, A100_SWITCH, ("Example", "Server"), "hgx-a100-8", 8),
        (8, "2330", 1, H100_SWITCH, ("Example", "Server"), "hgx-h100-8", 8),
        (8, "2330", 4, H100_SWITCH, ("NVIDIA", "DGXH100"), "dgx-h100", 8),
        (4, "2330", 0, "", ("Example", "Server"), "hgx-h100-4", 4),
        (8, "2335", 4, H100_SWITCH, ("Example", "Server"), "hgx-h200-8", 8),
        (8, "2335", 4, H100_SWITCH, ("NVIDIA", "DGXH200"), "dgx-h200", 8),
        (8, "2901", 0, "", ("Example", "Server"), "hgx-b200-8", 8),
        (8, "2901", 0, "", ("NVIDIA", "DGXB200"), "dgx-b200", 8),
        (8, "3182", 0, "", ("Example", "Server"), "hgx-b300-8", 8),
        (4, "2941", 0, "", None, "gb200-tray", 4),
        (4, "31c2", 0, "", None, "gb300-tray", 4),
        (1, "2342", 0, "", None, "gh200", None),
        (2, "2331", 0, "", ("Example", "Server"), "h100-pcie", None),
        (2, "2321", 0, "", ("Example", "Server"), "h100-nvl", None),
        (2, "233b", 0, "", ("Example", "Server"), "h200-nvl", None),
        (3, "26b9", 0, "", ("Example", "Server"), "l40s", None),
        (1, "2236", 0, "", ("Example", "Server"), "a10", None),
        (8, "20b5", 0, "", ("Example", "Server"), "a100-pcie", None),
        (8, "20b0", 6, A100_SWITCH, ("Amazon EC2", "p4d.24xlarge"), "ec2-p4", 8),
        (8, "2330", 4, H100_SWITCH, ("Amazon EC2", "p5.48xlarge"), "ec2-p5", 8),
        (1, "2330", 0, "", ("Amazon EC2", "p5.4xlarge"), "ec2-p5-4", 1),
        (8, "2901", 0, "", ("Amazon EC2", "p6-b200.48xlarge"), "ec2-p6-b200", 8),
        (8, "20b2", 6, A100_SWITCH, AZURE, "azure-nd-a100-v4", 8),
        (8, "2330", 4, H100_SWITCH, AZURE, "azure-nd-h100-v5", 8),
        (8, "2330", 0, "", GOOGLE, "h100-sxm-part", None),
        (1, "2330", 0, "", GOOGLE, "h100-sxm-part", None),
        (8, "2335", 0, "", GOOGLE, "google-a3-ultra", 8),
        (1, "2330", 0, "", QEMU, "h100-sxm-part", None),
        (2, "2330", 4, H100_SWITCH, QEMU, "h100-sxm-part", None),
        (1, "20b2", 0, "", QEMU, "a100-sxm-part", None),
        (1, "2335", 0, "", QEMU, "h200-sxm-part", None),
        (2, "2901", 0, "", QEMU, "b200-sxm-part", None),
    ],
)
def test_each_product_is_told_from_the_others(
    tmp_path: Path, gpus: int, ids: str, switches: int, switch: str, made: tuple[str, str] | None, profile: str,
    expected: int | None,
) -> None:  # fmt: skip
    values = node(server(tmp_path, gpus, ids, switches=switches, switch=switch, made=made))
    assert values["machine_profile"] == profile
    assert values.get("gpus_expected") == expected
    assert values["gpus_on_bus"] == gpus


def test_no_profile_is_left_untried() -> None:
    """Each profile is chosen for a machine that is just as it says."""
    for name, profile in PROFILES.items():
        match = profile.match
        ids = match.gpu[0]
        seen = Seen(
            gpus=tuple(Device(pci=f"0000:1{n}:00.0", id=ids) for n in range(profile.gpus or 1)),  # type: ignore[arg-type]
            switches=tuple(Device(pci="0000:c0:00.0", id=one) for one in match.switch),  # type: ignore[arg-type]
            vendor=match.vendor[0] if match.vendor else {"virtual": "QEMU", "": None}.get(match.on, "Example"),
            product=(match.product or ("Virtual Machine" if match.on == "virtual" else "Server",))[0],
        )
        assert choose(PROFILES, seen) == name


def test_a_gpu_that_left_the_bus_is_missing_from_the_count(tmp_path: Path) -> None:
    values = node(server(tmp_path, 7, "2330", switches=4))
    assert (values["gpus_on_bus"], values["gpus_expected"]) == (7, 8)


def test_a_machine_without_a_profile_expects_nothing(tmp_path: Path) -> None:
    found = rows(server(tmp_path, 2, "1db5"))
    assert found == {NODE: {"gpus_on_bus": 2, "gpus_for_driver": 2, "nvswitches_on_bus": 0}}


def test_each_gpu_is_told_what_its_product_has(tmp_path: Path) -> None:
    found = rows(server(tmp_path, 8, "2330", switches=4))
    assert found[SubjectId("gpu:0000:10:00.0")] == {
        "nvlinks_expected": 18, "pcie_link_generation_expected": 5, "pcie_link_width_expected": 16
    }  # fmt: skip
    assert found[NODE] == {
        "machine_profile": "hgx-h100-8", "gpus_expected": 8, "gpus_on_bus": 8, "gpus_for_driver": 8,
        "nvswitches_expected": 4, "nvswitches_on_bus": 4, "fabric_manager_expected": 1,
    }  # fmt: skip


def test_a_card_for_a_screen_is_none_of_the_gpus(tmp_path: Path) -> None:
    root = server(tmp_path, 4, "20b0")
    device(root, "0000:f0:00.0", "1fb0", "0x030000")
    found = rows(root)
    assert found[NODE]["gpus_on_bus"] == 4
    assert SubjectId("gpu:0000:f0:00.0") not in found


def test_cards_have_neither_a_count_nor_links(tmp_path: Path) -> None:
    found = rows(server(tmp_path, 2, "2331"))
    assert "gpus_expected" not in found[NODE]
    assert "fabric_manager_expected" not in found[NODE]
    assert "nvlinks_expected" not in found[SubjectId("gpu:0000:10:00.0")]


def test_a_site_knows_better(tmp_path: Path) -> None:
    settings = Settings(gpus_expected=2, nvlinks_expected=12, fabric_manager_expected=False, ib_ports_expected=1)
    found = rows(server(tmp_path, 8, "2330", switches=4), settings)
    assert found[NODE]["gpus_expected"] == 2
    assert found[NODE]["fabric_manager_expected"] == 0
    assert found[NODE]["ib_ports_expected"] == 1
    assert found[SubjectId("gpu:0000:10:00.0")]["nvlinks_expected"] == 12


def test_a_site_may_name_the_profile_or_none(tmp_path: Path) -> None:
    root = server(tmp_path, 8, "2330", switches=4)
    assert node(root, Settings(profile="hgx-h200-8"))["machine_profile"] == "hgx-h200-8"
    assert node(root, Settings(profile="none")) == {"gpus_on_bus": 8, "gpus_for_driver": 8, "nvswitches_on_bus": 4}
    with pytest.raises(ConfigInvalid, match="no profile 'dgx-9'"):
        rows(root, Settings(profile="dgx-9"))


def test_a_site_that_expects_gpus_hears_of_none_at_all(tmp_path: Path) -> None:
    root = server(tmp_path, 0, "")
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    with pytest.raises(Absent):
        rows(root)
    assert node(root, Settings(gpus_expected=8)) == {
        "gpus_on_bus": 0,
        "gpus_for_driver": 0,
        "nvswitches_on_bus": 0,
        "gpus_expected": 8,
    }


def test_no_bus_is_absent(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="no PCI bus"):
        rows(tmp_path)


def test_a_subsystem_tells_more_than_a_device() -> None:
    wide = Profile(title="", source="", match=Match(gpu=("10de:2330",)))
    narrow = Profile(title="", source="", match=Match(gpu=("10de:2330:16c1",)))
    of = {"wide": wide, "narrow": narrow}
    pci = "0000:10:00.0"
    assert choose(of, Seen(gpus=(Device(pci=pci, id="10de:2330", subsystem="16c1"),))) == "narrow"  # type: ignore[arg-type]
    assert choose(of, Seen(gpus=(Device(pci=pci, id="10de:2330", subsystem="1626"),))) == "wide"  # type: ignore[arg-type]


def test_mistakes_in_tables_are_told_together() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        parse({"a": "[x]\ntitle = 1", "b": "[", "c": '[y]\ntitle=""\nsource=""\nmatch={gpu=["1:2"], cpu="9"}'})
    assert [text.split(":")[0] for text in caught.value.mistakes] == [
        "rules/machines/a.toml", "rules/machines/b.toml", "rules/machines/c.toml"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("a100x8", "hgx-a100-8"), ("h100x8", "hgx-h100-8"), ("b200x8", "hgx-b200-8"), ("l40sx4", "l40s"),
        ("h100x8-mig", "hgx-h100-8"), ("h100x8-lost", "hgx-h100-8"),
    ],
)  # fmt: skip
def test_the_recorded_machines_fit_their_profiles(name: str, profile: str) -> None:
    assert node(machine(name))["machine_profile"] == profile


def test_a_recorded_machine_that_lost_a_gpu_still_lists_it(tmp_path: Path) -> None:
    """The kernel keeps the device of a GPU that fell off the bus until somebody removes it."""
    assert node(copied("h100x8-lost", tmp_path))["gpus_on_bus"] == 8


def test_every_column_is_declared(tmp_path: Path) -> None:
    declared = {quantity.name for quantity in QUANTITIES}
    settings = Settings(peermem_expected=True, imex_expected=False, ib_ports_expected=8)
    for values in rows(server(tmp_path, 8, "2330", switches=4), settings).values():
        assert set(values) <= declared


@pytest.mark.parametrize("wrong", [{"every": 0.0}, {"gpus_expected": -1}, {"nvlinks_expected": 9999}])
def test_what_no_machine_has_is_refused(wrong: dict[str, float]) -> None:
    (key,) = wrong
    with pytest.raises(ValueError, match=key):
        Settings(**wrong)  # type: ignore[arg-type]


def test_what_another_driver_has_is_not_for_nvidias(tmp_path: Path) -> None:
    root = copied("h100x8", tmp_path)
    gpus = [folder for folder in sorted((root / "sys/bus/pci/devices").iterdir())
            if (folder / "class").read_text().startswith("0x0302")]  # fmt: skip
    for folder, driver in zip(gpus[:3], ("vfio-pci", "nouveau", "nvidia"), strict=True):
        (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    found = node(root)
    assert (found["gpus_on_bus"], found["gpus_for_driver"]) == (8, 6)
