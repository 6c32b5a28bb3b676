"""One file a long-running process, named as its unit."""
