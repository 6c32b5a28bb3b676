"""Job traces of several forms, one file each: lines of text in, jobs and nodes out.

A file has `jobs(lines, file) -> Trace` and `nodes(lines, file) -> tuple[NodeJoined, ...]`, and a docstring that says
whose form it is and what each column means. `lines` are the file's lines as text, `file` its name for messages. Nothing
is guessed: whatever cannot be understood is a mistake that names file, line and column (`cells.Mistakes`), and then
nothing of the file is used. To add a form, write one file here and its test in `tests/unit/simulator/traces/`;
`runtime/simulation` names the one form that is read today.
"""
