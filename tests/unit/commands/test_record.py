"""What `gpuguard record` makes: a machine that plays the same, and that nobody's name stands in."""

import contextlib
import io
import json
import re
import shutil
import threading
from pathlib import Path

import pytest

from gpuguard import cli
from gpuguard.commands import record as commands_record
from gpuguard.errors import GpuguardError
from gpuguard.model.events import Sweep
from gpuguard.model.ids import EventId, SubjectId
from gpuguard.model.jobs import keeper_of
from gpuguard.model.readings import Rate, Values
from gpuguard.runtime import recording
from gpuguard.runtime.clock import ManualClock
from gpuguard.runtime.recording import Kept, Pace, ask_nvml, copy_host, write_nvml, write_origin
from gpuguard.runtime.redaction import Redaction
from gpuguard.sources.nvml.library import UNKNOWN, NvmlError
from gpuguard.sources.nvml.noted import Noted
from gpuguard.sources.nvml.played import Player, load
from gpuguard.sources.nvml.reader import Reader, Rows
from gpuguard.sources.tasks import Settings as TaskSettings
from gpuguard.sources.tasks import Tasks
from gpuguard.sources.topology import LEARNED, Settings, Wiring
from gpuguard.sweeping.owners import owner_of
from tests.support.machines import NAMES, machine
from tests.support.trees import link, pci_bridge, pci_function, process, put

CGROUPS = Path(__file__).resolve().parents[3] / "fixtures" / "cgroups"


class Time:
    """Seconds that pass while somebody rests."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now

    def rest(self, seconds: float) -> None:
        self.now += seconds


def record(root: Path, folder: Path, hosts: tuple[str, ...] = ()) -> Kept:
    time, kept, names = Time(), Kept(), Redaction(hosts, seed="a test")
    pace = Pace(passes=4, every=5.0, clock=time, rest=time.rest)
    noted = Noted(Player(load(root / "nvml.json"), time), time)
    ask_nvml(noted, root, pace, lambda _: None)
    copy_host(root, folder, write_nvml(folder, noted, root, pace, names), names, kept)
    write_origin(folder, kept, root, pace)
    return kept


def swept(root: Path, rate: Rate) -> Rows:
    time = Time()
    player = Player(load(root / "nvml.json"), time)
    player.open()
    return Reader(player, root).sweep(rate)


def everything(root: Path) -> str:
    return "\n".join(path.read_bytes().decode("utf-8", "replace") for path in sorted(root.rglob("*")) if path.is_file())


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_recorded_again_has_the_same_files_and_values(name: str, tmp_path: Path) -> None:
    kept = record(machine(name), tmp_path)
    files = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    first = {path.relative_to(machine(name)) for path in machine(name).rglob("*") if path.is_file()}
    assert first - files <= {Path("incident.kmsg"), Path("dcgm-exporter.prom")}
    assert files <= first
    assert kept.missing == {}
    rates: tuple[Rate, ...] = ("fast", "slow")
    for rate in rates:
        told, again = swept(machine(name), rate), swept(tmp_path, rate)
        assert told.keys() == again.keys()
        for subject, values in told.items():
            assert values.keys() == again[subject].keys()
            for column, value in values.items():
                if column not in ("gpu_uuid", "gpu_serial", "mig_uuid"):
                    assert again[subject][column] == value, (subject, column)


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_the_first_machine_is_left(name: str, tmp_path: Path) -> None:
    record(machine(name), tmp_path)
    before, after = everything(machine(name)), everything(tmp_path)
    boot = (machine(name) / "proc/sys/kernel/random/boot_id").read_text().strip()
    serials = set(re.findall(r'nvmlDeviceGetSerial":"(\d+)"', before))
    serials |= set(re.findall(r"(?i)serial number(?: is|:) (\d+)", before))
    uuids = set(re.findall(r"(?:GPU|MIG)-[0-9a-f-]{36}", before))
    comms = {path.read_text().strip() for path in machine(name).glob("proc/[0-9]*/comm")} & {
        "pt_main_thread", "notebook", "python3"
    }  # fmt: skip
    assert len(uuids) >= 4
    assert comms
    for old in (boot, *serials, *uuids, *comms, "20417"):
        assert old not in after, old


def wiring(root: Path) -> Rows:
    return Wiring(Settings(), root, root / LEARNED).sweep(ManualClock().now())


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_recorded_again_is_wired_the_same(name: str, tmp_path: Path) -> None:
    record(machine(name), tmp_path)
    told, again = wiring(machine(name)), wiring(tmp_path)
    guids = {row.pop("nic_guid", None) for row in told.values()}
    assert not guids & {row.pop("nic_guid", None) for row in again.values() if "nic_guid" in row}
    assert again == told


def test_the_wiring_of_a_real_tree_is_recorded(tmp_path: Path) -> None:
    """With links of the kernel's kind, registers that root may read, a card of another make, and names of its own."""
    root = put(tmp_path / "first", {
        "topology.toml": "learned", "proc/cpuinfo": "vendor_id\t: AuthenticAMD\n\nSerial\t\t: 0123456789",
        "sys/devices/system/node/node0/cpulist": "4-7", "sys/devices/system/node/node0/distance": "10",
        "sys/devices/system/cpu/cpu4/topology/thread_siblings_list": "4,6",
    })  # fmt: skip
    (root / "dev").mkdir()
    (root / "dev/kmsg").write_text("")
    put(root, {"proc/modules": "", "proc/sys/kernel/random/boot_id": "0" * 36})
    above = pci_bridge(root, "0000:15:01.0", ("pci0000:15",))
    space = bytearray(4096)
    space[0:4], space[0x34] = b"\x00\x10\x30\xc0", 0x40
    space[0x40:0x44] = (0x0042_0010).to_bytes(4, "little")
    space[0x100:0x104] = (0x0001_0003 | 0x180 << 20).to_bytes(4, "little")
    space[0x104:0x108] = b"\x12\x34\x56\x78"  # a serial number
    space[0x180:0x188] = (0x0001_000D).to_bytes(4, "little") + (0x001D_005F).to_bytes(4, "little")
    (root / "sys/bus/pci/devices/0000:15:01.0/config").write_bytes(space)
    card = pci_function(root, "0000:16:00.0", above, {"vendor": "0x14e4", "device": "0x1750", "class": "0x020000"})
    (card / "config").write_bytes(bytes(64))
    for at, files in (
        ("net/enx0a1b2c3d4e5f", {"speed": "100000"}), ("infiniband/bnxt_re0", {"node_guid": "0c42:a103:0065:1234"})
    ):  # fmt: skip
        put(card / at, files)
        link(root, f"sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/{at}/device", f"{card.relative_to(root)}")
        (root / "sys/class" / at).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys/class" / at).symlink_to(card.resolve() / at)
    link(root, "sys/bus/pci/devices/0000:16:00.0/driver", "sys/bus/pci/drivers/bnxt_en")
    kept = Kept()
    copy_host(root, tmp_path / "second", (), Redaction(seed="a test"), kept)
    assert set(kept.missing) == set()
    told, again = wiring(root), wiring(tmp_path / "second")
    assert told[SubjectId("bridge:0000:15:01.0")]["bridge_p2p_redirect"] == 1
    one, other = (rows[SubjectId("nic:bnxt_re0")] for rows in (told, again))
    assert (one.pop("nic_guid"), one.pop("nic_netdevs")) == ("0c42:a103:0065:1234", "enx0a1b2c3d4e5f")
    assert str(other.pop("nic_guid")) != "0c42:a103:0065:1234"
    assert re.fullmatch(r"enx[0-9a-f]{12}", str(other.pop("nic_netdevs")))
    assert again == told
    left = everything(tmp_path / "second")
    assert "0a1b2c3d4e5f" not in left
    assert "0123456789" not in left
    assert "\x12\x34\x56\x78" not in left
    assert not any(path.is_symlink() for path in (tmp_path / "second").rglob("*"))


def test_a_guid_of_none_stays() -> None:
    names = Redaction(seed="a test")
    assert names.guid("0000:0000:0000:0000") == "0000:0000:0000:0000"
    assert re.fullmatch(r"(?:[0-9a-f]{4}:){3}[0-9a-f]{4}", names.guid("0c42:a103:0065:1234"))
    assert names.interface("ens2f0np0") == "ens2f0np0"


def test_the_name_of_a_fabric_is_another_and_none_stays_none(tmp_path: Path) -> None:
    root = Path(shutil.copytree(machine("h100x8"), tmp_path / "first"))
    (old,) = set(re.findall(r'"clusterUuid":"([0-9a-f-]{36})"', (root / "nvml.json").read_text()))
    record(root, tmp_path / "second")
    assert f'"clusterUuid":"{old}"' in (tmp_path / "second/nvml.json").read_text()  # zeros
    mine = "5e1ec7ed-aaaa-4bbb-8ccc-123456789abc"
    (root / "nvml.json").write_text((root / "nvml.json").read_text().replace(old, mine))
    record(root, tmp_path / "third")
    made = (tmp_path / "third/nvml.json").read_text()
    (new,) = set(re.findall(r'"clusterUuid":"([0-9a-f-]{36})"', made))
    assert mine not in made
    row = swept(tmp_path / "third", "slow")[SubjectId("gpu:0000:1b:00.0")]
    assert (row["fabric_cluster"], row["fabric_clique"]) == (new, 0)


def test_a_name_is_the_same_in_every_file(tmp_path: Path) -> None:
    record(machine("h100x8-lost"), tmp_path)
    log = (tmp_path / "dev/kmsg").read_text()
    made = json.loads((tmp_path / "nvml.json").read_text())
    for device in made["devices"]:
        address = device["pci"][4:].lower()
        information = (tmp_path / "proc/driver/nvidia/gpus" / address / "information").read_text()
        assert device["uuid"] in information
    peers = [device for device in made["devices"] if device["pci"].startswith("00000000:C3")]
    assert peers[0]["uuid"] in log
    assert peers[0]["calls"]["nvmlDeviceGetSerial"] in log


def test_the_kernels_lines_about_others_are_left_out(tmp_path: Path) -> None:
    root = Path(shutil.copytree(machine("h100x8"), tmp_path / "first"))
    with (root / "dev/kmsg").open("a") as log:
        log.write("6,900,900000000,-;usb 1-1: SerialNumber: A1B2C3\n")
        log.write("30,901,900000001,-;nvidia-persistenced[7]: said on node17.example.org\n")
        log.write("4,902,900000002,-;NVRM: node17 at 10.1.2.3, name=alice_train, channel 1\n")
    record(root, tmp_path / "second", hosts=("node17", "node17.example.org"))
    log_lines = (tmp_path / "second/dev/kmsg").read_text().splitlines()
    assert log_lines[-1].endswith(";NVRM: gpu-node at 192.0.2.1, name=process-2, channel 1")
    assert not any("SerialNumber" in line or "persistenced" in line for line in log_lines)
    assert [int(line.split(",")[1]) for line in log_lines] == list(range(len(log_lines)))


def test_versions_are_no_addresses() -> None:
    names = Redaction((), seed="x")
    assert names.text("driver 570.124.06, firmware 28.39.1002.7") == "driver 570.124.06, firmware 28.39.1002.7"


def test_groups_keep_their_shape() -> None:
    names = Redaction((), seed="x")
    assert names.group("/system.slice/slurmstepd.scope/job_81/step_0/user/task_3") == (
        "/system.slice/slurmstepd.scope/job_81/step_0/user/task_3"
    )
    assert names.group("/user.slice/user-1000.slice/alice.scope") == "/user.slice/user-20001.slice/group-1.scope"
    slurm = "/slurm"
    assert names.group(f"{slurm}/uid_1000/job_5") == f"{slurm}/uid_20001/job_5"
    assert names.group("/system.slice/node17_slurmstepd.scope/job_alice") == (
        "/system.slice/gpu-node_slurmstepd.scope/group-2"
    )


@pytest.mark.parametrize("path", sorted(CGROUPS.glob("*.txt")), ids=lambda path: str(path.stem))
def test_groups_still_tell_who_keeps_the_job(path: Path) -> None:
    names, text = Redaction((), seed="x"), path.read_text()
    lines = [line.split(":", 2) for line in text.removesuffix("\n").replace(" (deleted)", "").split("\n")]
    told = owner_of("\n".join(f"{number}:{kinds}:{names.group(group)}" for number, kinds, group in lines))
    was = owner_of(text)
    assert keeper_of(told.job or "") == keeper_of(was.job or "")
    assert bool(told.part) == bool(was.part)
    for word in re.findall(r"[0-9a-f]{64}|20417|4711|train|gpu-node-7", text):
        assert word not in str(told)


def test_what_tasks_do_is_recorded_but_for_their_environment(tmp_path: Path) -> None:
    root = Path(shutil.copytree(machine("h100x8"), tmp_path / "first"))
    group = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_8123/step_0/user/task_0/io.pressure"
    put(root, {
        "proc/49306/environ": "SECRET=hunter2", "proc/49306/io": "rchar: 5\nwchar: 6", "proc/49306/wchan": "0",
        group: "full avg10=0.00 avg60=0.00 avg300=0.00 total=2000000",
    })  # fmt: skip
    process(root, 50001, "pt_data_worker", parent=49306)
    process(root, 50002, "sh", parent=50001)
    record(root, tmp_path / "second")
    rows = []
    for folder in (root, tmp_path / "second"):
        clock = ManualClock()
        tasks = Tasks(TaskSettings(), folder)
        values: dict[SubjectId, Values] = {SubjectId("rank:slurm/8123/0"): {"rank_pid": 49306}}
        tasks.name(Sweep(id=EventId("x"), at=clock.now(), source="h", rate="fast", valid_for=9.0, rows=values))
        rows.append(tasks.sweep(clock.now())[SubjectId("task:49306")])
    first, second = rows
    assert first["task_children"] == second["task_children"] == 1
    assert {column for column in first if first[column] != second.get(column)} == {"task_name", "task_uid"}
    assert not (tmp_path / "second/proc/50002").exists()
    assert not any(
        "hunter2" in path.read_text(errors="replace")
        for path in (tmp_path / "second/proc").rglob("*")
        if path.is_file()
    )


def test_without_a_seed_no_two_recordings_agree() -> None:
    assert Redaction().uuid("a") != Redaction().uuid("a")


def called(*argv: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.run(list(argv))
        except GpuguardError as error:
            code = error.exit_code
            err.write(str(error))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else -1
    return code, out.getvalue(), err.getvalue()


def test_the_command_writes_a_folder_and_never_over_one(tmp_path: Path) -> None:
    folder = str(tmp_path / "made")
    root = str(machine("l40sx4"))
    code, out, err = called("record", folder, "--root", root, "--passes", "2", "--every", "0.2", "--json")
    assert (code, json.loads(out)["gpus"], json.loads(out)["missing"]) == (0, 4, {})
    assert "pass 2 of 2" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made"]
    code, _, err = called("record", folder, "--root", root)
    assert code == 2
    assert "not written over" in err


def test_a_machine_without_nvml_is_recorded_in_part(tmp_path: Path) -> None:
    root = Path(shutil.copytree(machine("l40sx4"), tmp_path / "first"))
    (root / "nvml.json").unlink()
    code, out, _ = called("record", str(tmp_path / "second"), "--root", str(root))
    assert code == 1
    assert "missing: nvml.json" in out
    assert "Missing: nvml.json" in (tmp_path / "second/ORIGIN").read_text()


def test_a_lost_gpu_that_nothing_names_is_told_as_missing(tmp_path: Path) -> None:
    root = Path(shutil.copytree(machine("h100x8-lost"), tmp_path / "first"))
    shutil.rmtree(root / "proc/driver/nvidia/gpus")
    names = ("--passes", "2", "--every", "0.2")
    code, out, _ = called("record", str(tmp_path / "second"), "--root", str(root), *names)
    assert code == 1
    assert "1 of 8 GPUs" in out


@pytest.mark.parametrize(("serial", "kept"), [("SN-ABC-0042", False), ("1650923000001", False), ("N/A", True)])
def test_a_serial_with_letters_is_replaced_too(serial: str, kept: bool) -> None:
    assert (Redaction(seed="a test").serial(serial) == serial) is kept


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = called("record", str(tmp_path / "file/made"), "--root", str(machine("l40sx4")))
    assert code == 2
    assert "name another place" in err


def test_a_driver_that_hangs_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    woken = threading.Event()

    class Hung(Player):
        def open(self) -> None:
            woken.wait(10)
            raise NvmlError(UNKNOWN)

    hung = Hung(load(machine("l40sx4") / "nvml.json"), Time())
    monkeypatch.setattr(recording, "library_of", lambda root: hung)
    monkeypatch.setattr(commands_record, "PATIENCE", -1e9)
    code, _, err = called("record", str(tmp_path / "made"), "--root", str(machine("l40sx4")))
    woken.set()
    assert code == 2
    assert "NVML hangs in nvmlInitWithFlags" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("--passes", "1"), ("--every", "0.1"), ("--every", "x")])
def test_what_would_record_nothing_is_refused(words: tuple[str, str], tmp_path: Path) -> None:
    code, _, err = called("record", str(tmp_path / "made"), *words)
    assert code == 64
    assert "give" in err
