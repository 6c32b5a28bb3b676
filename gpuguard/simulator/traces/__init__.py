"""Job traces of several forms, one file each: lines of text in, jobs and nodes out."""
