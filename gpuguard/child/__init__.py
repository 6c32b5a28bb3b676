"""A child process that answers questions, or is left behind: what may hang in a driver must not hang the agent.

`process.Child` starts a program with one end of a socket, sends it messages and takes its messages with a deadline, and
never waits for it: a child that hangs is abandoned. `frames` is how both ends tell one message from the next.
"""
