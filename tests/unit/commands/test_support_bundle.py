import json
import os
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.commands.support_bundle import MASK, masked
from gpuguard.errors import ReadFailed
from gpuguard.store.reader import DATABASE_NAME
from tests.support.incidents import LOST, Machine, ask, lost_gpu

Output = pytest.CaptureFixture[str]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    lost_gpu(machine)
    machine.publish()
    yield machine
    machine.stop()


def parts(path: Path) -> dict[str, str]:
    found = {}
    with tarfile.open(path) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            assert file is not None
            found[member.name.removeprefix("gpuguard-support/")] = file.read().decode()
    return found


def test_everything_that_support_asks_for_is_in_it(node: Machine, tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "bundle.tar.gz"
    ask(node, "support-bundle", "--output", str(path))
    found = parts(path)
    assert "xid79" in found["status.txt"]
    assert LOST.split(",")[0] in found["why.txt"]
    assert json.loads(found["why.json"])["subjects"][0]["state"] == "unfit"
    assert json.loads(found["snapshot.json"])["level"] == 2
    assert json.loads(found["configuration.json"])["settings"]["policy"]["mode"] == "drain"
    assert json.loads(found["versions.json"])["python"]
    schema = json.loads(found["schema.json"])
    assert schema["schema_version"] == schema["known_up_to"]
    lines = [json.loads(line) for line in found["events-0001.jsonl"].splitlines()]
    assert LOST in [line["line"]["raw"] for line in lines if line["line"]]
    times = [line["entry"]["at"]["mono"] for line in lines]
    assert times == sorted(times, reverse=True), "the newest first"
    assert "  status.txt\n" in found["MANIFEST"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert f"{path}: " in capsys.readouterr().out.replace("\n", "")


def test_secrets_the_environment_and_the_hosts_name_stay_out(
    node: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITE_API_PASSWORD", "sesame-4711")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-rack7.example.org")
    node.line(LOST.replace("lammps", "gpu-rack7").replace("c1", "e3"))
    kept, replaced = tmp_path / "kept.tar.gz", tmp_path / "replaced.tar.gz"
    ask(node, "support-bundle", "--output", str(replaced))
    ask(node, "support-bundle", "--output", str(kept), "--keep-names")
    assert "sesame-4711" not in "".join(parts(replaced).values())
    assert "gpu-rack7" not in "".join(parts(replaced).values())
    assert "name=this-node" in parts(replaced)["events-0001.jsonl"]
    assert "name=gpu-rack7" in parts(kept)["events-0001.jsonl"]


def test_keys_that_may_be_secrets_are_masked() -> None:
    table = {"sources": {"api_token": "a", "paths": ["b"], "auth": {"password_file": "c", "user": "d"}}}
    assert masked(table) == {
        "sources": {"api_token": MASK, "paths": ["b"], "auth": {"password_file": MASK, "user": "d"}}
    }


def test_a_damaged_memory_leaves_a_bundle_with_the_reason(node: Machine, tmp_path: Path, capsys: Output) -> None:
    node.stop()
    (node.state_dir / DATABASE_NAME).write_bytes(b"junk" * 1000)
    path = tmp_path / "bundle.tar.gz"
    assert ask(node, "support-bundle", "--output", str(path), "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert {"events", "schema.json", "why.txt"} <= set(answer["missing"])
    found = parts(path)
    assert "database" in found["MANIFEST"]
    assert json.loads(found["status.json"])["problem"]
    assert json.loads(found["snapshot.json"])["level"] == 2


def test_a_wrong_configuration_is_told_in_it(node: Machine, tmp_path: Path) -> None:
    node.config.write_text("[policy]\nmodus = 1\n[actuator]\ntoken = 'hunter2'\n")
    path = tmp_path / "bundle.tar.gz"
    ask(node, "support-bundle", "--output", str(path))
    told = parts(path)["configuration.json"]
    assert "modus" in told
    assert "hunter2" not in told


def test_what_does_not_fit_is_left_out_by_name(node: Machine, tmp_path: Path, capsys: Output) -> None:
    from gpuguard.commands import support_bundle
    from tests.support.incidents import parsed_args

    path = tmp_path / "bundle.tar.gz"
    places = ["--output", str(path), "--state-dir", str(node.state_dir), "--config", str(node.config), "--json"]
    limit = 4096 * 2 + 64 * 1024 + 5000
    assert support_bundle.answer(parsed_args("support-bundle", places), node.clock, limit=limit) == 1
    answer = json.loads(capsys.readouterr().out)
    assert path.stat().st_size == answer["bytes"] <= limit
    assert "versions.json" in answer["parts"]
    assert "no room" in answer["missing"]["events-0001.jsonl"]


def test_a_place_that_cannot_be_written_is_an_error_and_leaves_nothing(node: Machine, tmp_path: Path) -> None:
    with pytest.raises(ReadFailed, match="--output"):
        ask(node, "support-bundle", "--output", str(tmp_path / "no" / "such" / "folder" / "b.tar.gz"))
    assert not [name for name in os.listdir(tmp_path) if "tar" in name]
