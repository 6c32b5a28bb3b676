"""One file a check.

To add one, write `detectors/<name>.py` with `Settings`, `Memory`, a class that fulfils `ports.Detector` and
`build(settings)`; `rules/detectors/<name>.toml` fills the Settings; a story of it goes to
`fixtures/detectors/<name>/*.scn`."""
