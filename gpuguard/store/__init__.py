"""Durable memory: health, its story, cursors and the actions still owed, in one SQLite file.

`sqlite` writes and is the agent's alone; `reader` answers questions, whether an agent runs or not; `schema` knows the
tables through the shelf `migrations/`; `rows` turns values into columns and back.
"""
