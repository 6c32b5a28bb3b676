"""NUMA nodes and processors: of one socket and many, without processors, without NUMA, and of other makers."""

from pathlib import Path

import pytest

from gpuguard.sources.topology import processors
from tests.support.trees import put


def node(root: Path, number: int, cpus: str, distance: str, package: str | None = None) -> None:
    put(root / f"sys/devices/system/node/node{number}", {"cpulist": cpus, "distance": distance})
    if package is not None:
        first = cpus.replace("-", ",").split(",")[0]
        put(root / f"sys/devices/system/cpu/cpu{first}/topology", {
            "physical_package_id": package, "thread_siblings_list": f"{first},{int(first) + 112}",
        })  # fmt: skip


def test_two_sockets(tmp_path: Path) -> None:
    node(tmp_path, 0, "0-55,112-167", "10 21", "0")
    node(tmp_path, 1, "56-111,168-223", "21 10", "1")
    put(tmp_path / "sys/devices/system/node", {"online": "0-1"})
    assert processors.nodes(tmp_path) == {
        "numa_cpus": ("0", "0-55,112-167", "1", "56-111,168-223"), "numa_sockets": ("0", 0, "1", 1),
        "numa_distances": ("0/0", 10, "0/1", 21, "1/0", 21, "1/1", 10), "cpu_siblings": "0,112",
    }  # fmt: skip


def test_memory_without_processors_belongs_to_no_socket(tmp_path: Path) -> None:
    node(tmp_path, 0, "", "10 40 80")
    node(tmp_path, 1, "0-71", "40 10 80", "0")
    node(tmp_path, 10, "", "80 80 10")
    told = processors.nodes(tmp_path)
    assert told["numa_cpus"] == ("0", "", "1", "0-71", "10", ""), "known to be none, in the order of the numbers"
    assert told["numa_sockets"] == ("1", 0)
    assert told["cpu_siblings"] == "0,112"
    distances = told["numa_distances"]
    assert isinstance(distances, tuple)
    assert distances[distances.index("0/10") + 1] == 80


@pytest.mark.parametrize(("package", "socket"), [("-1", None), ("x", None), ("3", 3)])
def test_sockets(tmp_path: Path, package: str, socket: int | None) -> None:
    node(tmp_path, 0, "0-3", "10", package)
    assert processors.nodes(tmp_path)["numa_sockets"] == ("0", socket)


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "sys/devices/system/node/node0/cpulist").mkdir(parents=True)
    assert processors.nodes(tmp_path) == {"numa_cpus": ("0", None), "numa_sockets": (), "numa_distances": ()}
    node(tmp_path, 1, "junk", "10 21 x")
    told = processors.nodes(tmp_path)
    assert told["numa_cpus"] == ("0", None, "1", None)
    assert told["numa_distances"] == (), "two nodes and three distances: one came or went meanwhile"


def test_a_kernel_without_numa(tmp_path: Path) -> None:
    put(tmp_path / "sys/devices/system/cpu/cpu0/topology", {"core_cpus_list": "0-1"})
    assert processors.nodes(tmp_path) == {"cpu_siblings": "0-1"}
    assert processors.nodes(tmp_path / "nothing") == {}


INTEL = (
    "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Xeon\nflags\t\t: fpu lm"
)
ARM = "processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{INTEL}\n\nprocessor\t: 1\nmodel\t\t: 7", {
            "cpu_architecture": "x86_64", "cpu_vendor": "GenuineIntel", "cpu_family": 6, "cpu_model": 143}),
        (INTEL.replace(" lm", ""), {
            "cpu_architecture": "i686", "cpu_vendor": "GenuineIntel", "cpu_family": 6, "cpu_model": 143}),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: ?", {
            "cpu_architecture": "x86_64", "cpu_vendor": "AuthenticAMD", "cpu_family": None}),
        (ARM, {"cpu_architecture": "aarch64", "cpu_vendor": "0x41"}),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported", {"cpu_architecture": "ppc64le"}),
        ("", {}), ("\x00\x00", {}), ("no colon at all", {}),
    ],
)  # fmt: skip
def test_models(tmp_path: Path, text: str, told: dict[str, object]) -> None:
    put(tmp_path, {"proc/cpuinfo": text})
    assert processors.model(tmp_path) == told


def test_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    assert processors.model(tmp_path) == {}
    (tmp_path / "proc/cpuinfo").mkdir(parents=True)
    assert processors.model(tmp_path) == {"cpu_architecture": None}
