"""The network, and the directories that hold one."""
