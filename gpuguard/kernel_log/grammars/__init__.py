"""One file a kind of line.

To add one, write `grammars/<kind>.py` with a class that fulfils `ports.Grammar`, real lines in
`fixtures/kernel_log/<kind>/`, and its row in `kernel_log/shelves.py`."""
