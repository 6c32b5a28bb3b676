"""Joins findings that have one cause."""
