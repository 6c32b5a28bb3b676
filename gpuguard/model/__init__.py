"""The nouns that cross folders: ids, units, instants, events, findings, health and actions.

Values are frozen and valid once constructed. A type used in one folder only stays in that folder.
"""
