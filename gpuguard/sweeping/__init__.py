"""What sources that look at the host again and again share: the loop, reads with a deadline, files, GPUs on the bus.

A layer of its own below `sources/`, whose files do not know each other.
"""
