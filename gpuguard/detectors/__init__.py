"""One file a check.

To add one, write `detectors/<name>.py` with `Settings`, `Memory`, a class that fulfils `ports.Detector` (it judges by
events), `ports.RowDetector` (it judges what is measured of one subject) or `ports.MachineDetector` (it judges how the
parts of the machine stand to each other) and `build(settings, rules)`; `rules/detectors/<name>.toml` fills the
Settings; a story of it goes to `fixtures/detectors/<name>/*.scn`. One that judges what is measured has three at least:
`fault.scn`, `healthy.scn` and `unknown.scn`.
"""
