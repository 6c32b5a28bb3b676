"""Shelf of hooks: one file for each framework whose loop can be told to report by itself.

A file imports its framework, so it is imported only by programs that have it. It reports through the process's reporter
and takes `reporter=` for another. Imports within the folder are relative: it may be copied without the rest.
"""
