"""Reads kernel messages: `forms` know how a log prints a record, `grammars` what the text means."""
