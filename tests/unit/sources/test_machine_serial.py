"""By what a machine is known: its maker's serial, else the id of its installation, and never words of no meaning."""

import os
import re
from pathlib import Path

import pytest

from gpuguard.model.ids import NODE
from gpuguard.model.readings import Values
from gpuguard.runtime.assembly import RulesFolder
from gpuguard.runtime.clock import ManualClock
from gpuguard.runtime.recording import Kept, copy_host
from gpuguard.runtime.redaction import Redaction
from gpuguard.sources.machine import Machine, Settings
from gpuguard.sources.machine.profiles import parse
from gpuguard.sources.machine.serial import fill, is_serial
from tests.support.machines import copied

ID = "0123456789abcdef0123456789abcdef"


def told(root: Path) -> Values:
    values: Values = {}
    fill(values, root)
    return values


def written(root: Path, **files: str) -> Path:
    for name, text in files.items():
        folder = root / ("etc" if name == "machine_id" else "sys/class/dmi/id")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name.replace("machine_id", "machine-id")).write_text(text)
    return root


def test_the_whole_machines_serial_comes_first(tmp_path: Path) -> None:
    root = written(tmp_path, product_serial="CZ3X1234ABC\n", board_serial="PWABC0042\n", machine_id=f"{ID}\n")
    assert told(root) == {"node_serial": "CZ3X1234ABC"}
    (root / "sys/class/dmi/id/product_serial").write_text("To be filled by O.E.M.\n")
    assert told(root) == {"node_serial": "PWABC0042"}


def test_the_id_of_the_installation_is_shown_as_a_hash(tmp_path: Path) -> None:
    """The same each time, another for another installation, and no way back."""
    node = told(written(tmp_path / "a", product_serial="Default string\n", machine_id=f"{ID}\n"))["node_serial"]
    assert isinstance(node, str)
    assert re.fullmatch(r"id-[0-9a-f]{16}", node)
    assert ID[:8] not in node
    assert told(written(tmp_path / "b", machine_id=ID)) == {"node_serial": node}
    assert told(written(tmp_path / "c", machine_id=ID[::-1]))["node_serial"] != node


@pytest.mark.parametrize("text", ["uninitialized\n", "", "\n", "0123", "x" * 32])
def test_an_installation_without_an_id_has_none(text: str, tmp_path: Path) -> None:
    assert told(written(tmp_path, machine_id=text)) == {}


def test_a_machine_without_any_has_no_such_column(tmp_path: Path) -> None:
    assert told(tmp_path) == {}
    assert told(written(tmp_path, product_serial="\n", board_serial="None\n")) == {}


def test_what_may_not_be_read_is_unknown_where_nothing_else_tells(tmp_path: Path) -> None:
    """A socket in its place is what nobody can open, root neither."""
    folder = tmp_path / "sys/class/dmi/id"
    folder.mkdir(parents=True)
    os.mkdir(folder / "product_serial")
    assert told(tmp_path) == {"node_serial": None}
    assert told(written(tmp_path, board_serial="PWABC0042\n")) == {"node_serial": "PWABC0042"}


@pytest.mark.parametrize(
    "text",
    [
        "To be filled by O.E.M.", "To Be Filled By O.E.M", "Default string", "Not Specified", "System Serial Number",
        "None", "N/A", "0", "00000000", "XXXXXXXX", "xxx", "0123456789", "123456789012", "Base Board Serial Number",
        "Unknown", "..........", "ab", "x" * 65, "bad\x00serial", "\u00e9t\u00e9 1234", "Not Available",
    ],
)  # fmt: skip
def test_words_of_no_meaning_are_no_serial(text: str) -> None:
    assert not is_serial(text)


@pytest.mark.parametrize("text", ["CZ3X1234ABC", "VMware-56 4d 9a 1c", "1650000000001", "S.N/0042-A", "GoogleCloud-12"])
def test_what_makers_write_is_one(text: str) -> None:
    assert is_serial(text)


def test_it_is_in_the_nodes_row(tmp_path: Path) -> None:
    root = written(copied("h100x8", tmp_path / "machine"), product_serial="CZ3X1234ABC\n")
    made = Machine(Settings(), root, parse(RulesFolder("machine").texts("machines")))
    assert made.rows(ManualClock().now())[NODE]["node_serial"] == "CZ3X1234ABC"


def test_a_recording_knows_the_machine_by_another_name(tmp_path: Path) -> None:
    """Of the same form, the same in every file, and also where a line of the kernel's has it."""
    root = written(tmp_path / "old", product_serial="CZ3X1234ABC\n", board_serial="N/A\n", machine_id=f"{ID}\n")
    (root / "dev").mkdir()
    (root / "dev/kmsg").write_text(f"6,1,5000,-;nvidia: of CZ3X1234ABC and {ID}\n")
    copy_host(root, tmp_path / "new", (), Redaction(seed="a test"), Kept())
    serial = (tmp_path / "new/sys/class/dmi/id/product_serial").read_text().strip()
    machine = (tmp_path / "new/etc/machine-id").read_text().strip()
    assert re.fullmatch(r"[A-Z]{2}\d[A-Z]\d{4}[A-Z]{3}", serial)
    assert re.fullmatch(r"[0-9a-f]{32}", machine)
    assert serial != "CZ3X1234ABC"
    assert machine != ID
    assert (tmp_path / "new/sys/class/dmi/id/board_serial").read_text() == "N/A\n"
    assert f"of {serial} and {machine}" in (tmp_path / "new/dev/kmsg").read_text()
    left = "".join(path.read_text() for path in (tmp_path / "new").rglob("*") if path.is_file())
    assert "CZ3X1234ABC" not in left
    assert ID not in left
    assert told(tmp_path / "new") == {"node_serial": serial}


def test_a_short_serial_is_replaced_in_its_own_file(tmp_path: Path) -> None:
    root = written(tmp_path / "old", product_serial="AB12\n")
    copy_host(root, tmp_path / "new", (), Redaction(seed="a test"), Kept())
    assert "AB12" not in (tmp_path / "new/sys/class/dmi/id/product_serial").read_text()
