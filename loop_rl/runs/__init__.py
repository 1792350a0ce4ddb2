"""What any command reads and writes of a run folder: rows of metrics and of evaluations, and writes that are whole."""
