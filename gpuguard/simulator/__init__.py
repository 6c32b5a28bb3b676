"""Virtual time over the real scheduler core. Pure: the command opens the files and draws the chances."""
