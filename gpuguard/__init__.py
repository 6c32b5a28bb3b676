"""gpuguard: the node agent that notices a failing GPU, says why, and takes the node out of service."""

__version__ = "0.6.0"
