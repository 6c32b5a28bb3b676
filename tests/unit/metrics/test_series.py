"""How many series a node makes: what is added to every GPU or link is paid by every Prometheus."""

from gpuguard.runtime.plugins import shelf
from tests.support.snapshots import node


def test_a_node_of_which_everything_is_known() -> None:
    """More than any machine can tell: the errors of NVLink 5 and those before it, retired pages and remapped rows."""
    snapshot = node()
    samples = [s for module in shelf("gpuguard.metrics").values() for f in module.families(snapshot) for s in f.samples]
    assert len(samples) <= 2000
    assert len({(s.name, *sorted(s.labels.items())) for s in samples}) == len(samples)
