"""One look at the node without a daemon: which sources take part."""

from pathlib import Path

from gpuguard.runtime.assembly import assemble
from gpuguard.runtime.clock import SystemClock
from gpuguard.runtime.look import look
from tests.support.machines import machine


def seen(config: Path, state: Path, *without: str) -> set[str]:
    root = machine("a100x8")
    snapshot = look(assemble(config), state_dir=state, root=root, clock=SystemClock(root), without=without)
    return {source.name for source in snapshot.shell.sources}


def test_what_is_left_out_is_not_asked(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[agent]\nsources = ["kmsg", "journal", "dcgm"]\n')
    assert seen(config, tmp_path) == {"kmsg", "dcgm"}
    assert seen(config, tmp_path, "dcgm") == {"kmsg"}
