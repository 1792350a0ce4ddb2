"""The verbs of the command line that do more than call one function."""
