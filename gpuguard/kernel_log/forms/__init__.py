"""One file a way in which a log prints kernel records.

To add one, write `forms/<name>.py` with a class that fulfils `ports.Form`, and its row in `kernel_log/shelves.py`."""
