"""Whether a looped model has fixed points, and what that allows: measurements, advice, and their table and figure."""
