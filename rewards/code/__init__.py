"""One judge of programs: run in the sandbox, their outputs compared here."""
