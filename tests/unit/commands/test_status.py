import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuguard.cli import run
from gpuguard.model.health import Snapshot, SourceView
from gpuguard.store.reader import DATABASE_NAME
from tests.support.incidents import LOST, Machine, ask, config_text, lost_gpu

Output = pytest.CaptureFixture[str]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.stop()


def facts(node: Machine, output: Output, code: int, *options: str, **more: object) -> dict[str, object]:
    assert ask(node, "status", "--json", *options, **more) == code
    answer: dict[str, object] = json.loads(output.readouterr().out)
    return answer


def test_a_healthy_node_with_a_running_agent_needs_nobody(node: Machine, capsys: Output) -> None:
    node.publish()
    assert ask(node, "status") == 0
    text = capsys.readouterr().out
    assert f"runs since 2023-11-14 22:13:20Z (pid {os.getpid()})" in text
    assert "mode drain (drains by itself), policy default" in text
    assert "OK: nothing stands against this node" in text
    assert "attention" not in text


def test_sources_that_simply_watch_share_a_line(node: Machine, capsys: Output) -> None:
    def source(name: str, lost: int = 0) -> SourceView:
        return SourceView(name=name, level="watching", reason="", last_success_utc=1.7e9, lost=lost, restarts=0)

    node.publish(source("pcie"), source("nvml"), source("edac", lost=3))
    assert ask(node, "status") == 0
    text = capsys.readouterr().out
    assert "watching: pcie, nvml\n" in text
    assert "edac watching; last success 2023-11-14 22:13:20Z; lost 3" in text


def test_an_unfit_gpu_needs_somebody(node: Machine, capsys: Output) -> None:
    lost_gpu(node)
    node.publish()
    assert ask(node, "status") == 1
    text = capsys.readouterr().out
    assert "GPU 0000:c1:00.0 unfit, needs a reboot: xid79" in text
    assert "kmsg watching; last success 2023-11-14 22:14:42Z; at record 5 of boot b0070000" in " ".join(text.split())
    assert "`gpuguard why`" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_dead_agents_memory_is_told_from_the_disk(node: Machine, capsys: Output) -> None:
    lost_gpu(node)
    node.publish()
    node.stop()
    assert ask(node, "status") == 1
    text = capsys.readouterr().out
    assert text.startswith("agent       none runs; the last one was alive ")
    assert "kmsg blind; no agent runs" in text
    assert "GPU 0000:c1:00.0 unfit, needs a reboot: xid79" in text
    assert "systemctl start gpuguard-agent" in " ".join(text.split())


def test_a_silent_agent_is_said_to_hang(node: Machine, capsys: Output) -> None:
    node.publish()
    old = time.time() - 500.0
    os.utime(node.state_dir / "snapshot.json", (old, old))
    answer = facts(node, capsys, 1)
    assert answer["agent"]["hangs"] is True  # type: ignore[index]
    assert "no sign of life for 50" in str(answer["attention"])


def test_a_blind_source_is_told_with_its_reason_in_plain_letters(node: Machine, capsys: Output) -> None:
    node.publish(
        SourceView(
            name="kmsg", level="blind", reason="no right to read \x1b[2J", last_success_utc=None, lost=3, restarts=2
        )
    )
    assert ask(node, "status") == 1
    text = capsys.readouterr().out
    assert "kmsg blind; no right to read \\x1b[2J; lost 3; restarted twice" in " ".join(text.split())
    assert "\x1b" not in text


def test_a_running_agent_is_asked_for_what_it_did_not_write_down_yet(
    node: Machine, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.publish()
    written = json.loads((node.state_dir / "snapshot.json").read_bytes())
    written["shell"]["listen"] = "127.0.0.1:9818"
    (node.state_dir / "snapshot.json").write_text(json.dumps(written))
    written["shell"]["sources"][0]["last_success_utc"] = 1_700_000_555.0
    asked: list[str] = []
    now = msgspec.convert(written, Snapshot)
    monkeypatch.setattr("gpuguard.runtime.board.ask_agent", lambda listen: asked.append(listen) or now)
    sources = facts(node, capsys, 0)["sources"]
    assert sources[0]["last_success"] == 1_700_000_555.0  # type: ignore[index]
    assert asked == ["127.0.0.1:9818"]
    node.stop()
    facts(node, capsys, 1)
    assert len(asked) == 1


def test_what_is_owed_is_told_with_tries_and_the_next_one(node: Machine, capsys: Output) -> None:
    node.scheduler.error = "slurmctld does not answer"
    node.line(LOST)
    node.publish()
    answer = facts(node, capsys, 1)
    (owed,) = answer["owed"]  # type: ignore[misc]
    assert (owed["verb"], owed["tries"], owed["message"]) == ("drain", 1, "slurmctld does not answer")
    assert owed["next_try"] == owed["since"] + 5.0
    assert ask(node, "status") == 1
    assert "tried once, next try 2023-11-14 22:13:26Z; slurmctld does not answer" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    ("flags", "reason", "holder", "word"),
    [
        (("IDLE",), "", "nobody", "somebody lifted it"),
        (("IDLE", "DRAIN"), "NHC: disk full", "foreign", ""),
        (("IDLE", "DRAIN"), "gpuguard:beef gpu2 lost xid79", "orphan", "`gpuguard resume --adopt beef`"),
        (("IDLE", "DRAIN"), None, "ours", ""),
    ],
)
def test_live_asks_who_holds_the_node(
    node: Machine, capsys: Output, flags: tuple[str, ...], reason: str | None, holder: str, word: str
) -> None:
    lost_gpu(node)
    node.publish()
    node.scheduler.flags = flags
    node.scheduler.reason = node.scheduler.reason if reason is None else reason
    answer = facts(node, capsys, 1, "--live", target=node.scheduler)
    assert answer["scheduler"]["holder"] == holder  # type: ignore[index]
    assert word in str(answer["attention"])


def test_a_scheduler_that_cannot_be_asked_is_told_and_the_rest_too(node: Machine, capsys: Output) -> None:
    node.publish()
    node.config.write_text(config_text("drain", '[actuators.slurm]\nscontrol = "/bin/false"\n'))
    assert ask(node, "status", "--live") == 1
    text = capsys.readouterr().out
    assert "gpuguard-actuator cannot be reached" in " ".join(text.split())
    assert "OK: nothing stands against this node" in text


def test_a_wrong_configuration_hides_nothing_but_the_scheduler(node: Machine, capsys: Output) -> None:
    node.publish()
    node.config.write_text("[policy]\nmodus = 'drain'\n[agent]\nsources = ['kmsk']\n")
    answer = facts(node, capsys, 1, "--live")
    assert "modus" in str(answer["scheduler"])
    assert answer["node"] == {"level": "OK", "line": "nothing stands against this node", "changed": False}
    assert "would not start again" in str(answer["attention"])


def test_an_agent_that_does_not_start_for_its_configuration_is_told_every_mistake(
    node: Machine, capsys: Output
) -> None:
    node.publish()
    node.stop()
    node.config.write_text("[policy]\nmodus = 'drain'\nprobation = 'long'\n")
    assert ask(node, "status") == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "[policy] modus: there is no such key; did you mean mode?" in text
    assert '[policy] probation: "long" is not a number (seconds)' in text
    assert "mend the configuration (below), then `systemctl start gpuguard-agent`" in text


def test_the_mistakes_are_told_also_where_no_agent_ever_ran(tmp_path: Path, capsys: Output) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[policy]\nmodus = 'drain'\n")
    assert run(["status", "--state-dir", str(tmp_path / "nowhere"), "--config", str(config)]) == 2
    assert "the agent does not start with" in capsys.readouterr().err


def test_a_configuration_that_this_user_may_not_read_is_no_mistake(
    node: Machine, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.publish()
    monkeypatch.setattr(os, "access", lambda path, _: path != node.config)
    answer = facts(node, capsys, 0)
    assert answer["configuration"] == {"mistakes": []}


def test_a_user_who_may_not_read_the_memory_gets_what_the_agent_published(
    node: Machine, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.publish()
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != DATABASE_NAME)
    assert ask(node, "status") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "memory not for this user but for its owner and group, so this is what the agent published" in text
    assert "OK: nothing stands against this node" in text


def test_a_healthy_dry_run_needs_nobody(node: Machine, capsys: Output) -> None:
    node.publish()
    node.config.write_text(config_text("drain").replace("slurm", "dry_run"))
    assert ask(node, "status", "--live") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "(writes nothing outside until [actuator] target names the scheduler: slurm, kubernetes or bundled)" in text
    assert "scheduler dry_run: none is asked, as the target is a dry run" in text


def test_a_word_said_while_no_agent_ran_is_in_the_verdict(node: Machine, capsys: Output) -> None:
    lost_gpu(node)
    node.publish()
    node.stop()
    assert ask(node, "ack", "xid79", "--by", "mia", "--reason", "reseated", target=node.scheduler) == 0
    capsys.readouterr()
    assert ask(node, "status") == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "node WARNING: c1:00.0 returning (not yet given back, 0 clean looks so far) (by the memory" in text
    assert "CRITICAL" not in text


def test_a_damaged_memory_leaves_what_the_snapshot_says(node: Machine, capsys: Output) -> None:
    lost_gpu(node)
    node.publish()
    node.stop()
    (node.state_dir / DATABASE_NAME).write_bytes(b"not a database" * 100)
    answer = facts(node, capsys, 1)
    assert "database" in str(answer["problem"])
    assert [s["subject"] for s in answer["subjects"]] == ["gpu:0000:c1:00.0"]  # type: ignore[attr-defined]


def test_nothing_to_read_is_a_failure_with_a_next_step(tmp_path: Path, capsys: Output) -> None:
    assert run(["status", "--state-dir", str(tmp_path / "nowhere")]) == 2
    assert "systemctl start gpuguard-agent" in capsys.readouterr().err
