"""The commands that do more than call one function."""
