"""The shell that all daemons share: loop, supervision, clock, configuration, HTTP, log."""
