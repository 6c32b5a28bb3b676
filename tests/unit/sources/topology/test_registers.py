"""Registers of bridges: the port type, ACS and its bits, and what cannot be read, lies or goes in a circle."""

from pathlib import Path

import pytest

from gpuguard.sources.topology.registers import ACS, Registers, find_acs, find_express, read, shortened

Space = dict[int, int]


def config(folder: Path, words: Space, size: int = 4096) -> Path:
    """A configuration space with these words; the header is that of a bridge whose capabilities begin at 0x40."""
    space = bytearray(size)
    for at, word in {0: 0xC030_1000, 0x34: 0x40, **words}.items():
        if at + 4 <= size:
            space[at : at + 4] = word.to_bytes(4, "little")
    path = folder / "config"
    path.write_bytes(space)
    return path


def express(port_type: int, following: int = 0) -> int:
    return 0x10 | following << 8 | (2 | port_type << 4) << 16


def extended(capability: int, following: int = 0) -> int:
    return capability | 1 << 16 | following << 20


@pytest.mark.parametrize(
    ("port_type", "kind"),
    [(4, "root_port"), (5, "upstream"), (6, "downstream"), (7, "bridge"), (8, "bridge"), (0, None), (15, None)],
)
def test_port_types(tmp_path: Path, port_type: int, kind: str | None) -> None:
    # Behind power management, as it often is.
    path = config(tmp_path, {0x40: 0x01 | 0x68 << 8, 0x68: express(port_type)})
    assert read(path) == Registers(kind=kind, acs=False)


@pytest.mark.parametrize(
    ("control", "redirects"),
    [
        (0, False), (0b00001, False), (0b00100, True), (0b01000, True), (0b11101, True), (0b10011, False),
    ],
)  # fmt: skip
def test_what_acs_redirects(tmp_path: Path, control: int, redirects: bool) -> None:
    path = config(tmp_path, {
        0x40: express(6), 0x100: extended(0x0001, 0x148), 0x148: extended(ACS), 0x14C: control << 16 | 0x5F
    })  # fmt: skip
    assert read(path) == Registers(kind="downstream", acs=True, redirects=redirects)


def test_who_is_not_root_is_given_the_header(tmp_path: Path) -> None:
    assert read(config(tmp_path, {}, size=64)) == Registers()


def test_without_the_extended_space_acs_is_unknown(tmp_path: Path) -> None:
    assert read(config(tmp_path, {0x40: express(4)}, size=256)) == Registers(kind="root_port")
    assert read(config(tmp_path, {0x40: express(4), 0x100: 0xFFFF_FFFF})) == Registers(kind="root_port")


def test_half_a_capability_is_unknown(tmp_path: Path) -> None:
    assert read(config(tmp_path, {0x100: extended(ACS)}, size=0x104)) == Registers(acs=True)


def test_a_device_that_does_not_answer(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(b"\xff" * 4096)
    assert read(path) == Registers()
    path.write_bytes(b"")
    assert read(path) == Registers()


def test_lists_that_go_in_circles_end(tmp_path: Path) -> None:
    words = {0x40: 0x01 | 0x44 << 8, 0x44: 0x05 | 0x40 << 8, 0x100: extended(1, 0x104), 0x104: extended(2, 0x100)}
    assert read(config(tmp_path, words)) == Registers()
    assert find_express(lambda at: 0x01 | 0x40 << 8) is None
    assert find_acs(lambda at: extended(1, 0x100)) is None


@pytest.mark.parametrize("acs", [None, 0, 0b1100])
def test_what_is_shortened_tells_the_same(tmp_path: Path, acs: int | None) -> None:
    words = {0x40: 0x01 | 0x68 << 8, 0x68: express(6, 0xA4), 0xA4: 0x0D}
    if acs is not None:
        words |= {0x100: extended(3, 0x200), 0x104: 0x12345678, 0x200: extended(ACS), 0x204: acs << 16}
    else:
        words |= {0x100: extended(3), 0x104: 0x12345678}
    path = config(tmp_path, words)
    told = read(path)
    short = shortened(path)
    assert short is not None
    assert len(short) < 300
    assert (0x12345678).to_bytes(4, "little") not in short, "a serial number is left out"
    path.write_bytes(short)
    assert read(path) == told
    assert told.acs is (acs is not None)
    assert shortened(path) == short


def test_a_header_alone_is_not_shortened(tmp_path: Path) -> None:
    assert shortened(config(tmp_path, {}, size=64)) is None


def test_half_a_capability_is_not_shortened_to_a_control_of_zero(tmp_path: Path) -> None:
    assert shortened(config(tmp_path, {0x100: extended(ACS)}, size=0x104)) is None
