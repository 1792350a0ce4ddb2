"""The commands: their arguments, and calls of what does the work, imported when a command is run."""
