"""The verbs of the command line: their arguments, and calls of what does the work, imported when a verb is run."""
