"""Who may write a node's state: the drain's token and the ownership table. Pure; used by actuators and health alike."""
