"""One file a page that speaks the names of another exporter, computed from a Snapshot.

To add one, write `compat/<name>.py` with a frozen dataclass `Settings` and `page(snapshot, settings, hostname)` that
returns the page's text; `agent --compat <name>` serves it at /metrics/<name>. Such a page is served only when asked
for, and never together with gpuguard's own names: the same facts twice in one scrape would cost twice.
"""
