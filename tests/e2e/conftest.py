"""Services that end-to-end tests may ask for by name; each starts only when a test asks."""

from tests.support.apiserver import apiserver
from tests.support.slurm import short_path, slurm, slurm_cluster

__all__ = ["apiserver", "short_path", "slurm", "slurm_cluster"]
