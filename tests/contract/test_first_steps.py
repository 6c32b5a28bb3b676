"""What docs/first-steps.md tells a newcomer to write and type is understood."""

import re
from pathlib import Path

from gpuguard.kernel_log.reader import parse_record
from gpuguard.runtime.assembly import assemble
from tests.support.machines import machine

PAGE = Path(__file__).resolve().parents[2] / "docs/first-steps.md"


def test_its_configuration_is_valid_and_acts_in_slurm(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    config = tmp_path / "config.toml"
    config.write_text(text)
    parts = assemble(config)
    assert parts.policy.mode == "drain"
    assert not parts.policy.dry_run
    actuator, hand = parts.config.settings("actuator"), parts.config.settings("actuators.delegate")
    assert actuator.target == "slurm"
    assert actuator.socket == hand.socket
    assert parts.config.settings("actuators.slurm").node == "node1"


def test_the_fault_it_plays_is_a_lost_gpu() -> None:
    records = [line for line in (machine("h100x8") / "incident.kmsg").read_bytes().splitlines() if line[:1] != b"#"]
    texts = [parse_record(line).text for line in records]
    assert any("): 79," in text and "0000:9d:00" in text for text in texts)
