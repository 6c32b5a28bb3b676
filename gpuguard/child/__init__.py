"""A child process that answers questions, or is left behind: what may hang in a driver must not hang the agent."""
