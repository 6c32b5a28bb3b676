"""One file or folder a place that facts come from.

To add one, write `sources/<name>.py` with a frozen dataclass `Settings`, and `build(settings, root, clock)` that
returns a `ports.Source`. It runs in a thread of its own, emits Batches and knows nothing of other sources.

What supervision expects of `run`: an empty Batch once all that was there at the start has been read, and any Batch at
least once a minute as a sign of life; Absent and ReadFailed end it, and it is started again at its newest cursor.
`stop` and `ask` come from other threads and return at once."""
