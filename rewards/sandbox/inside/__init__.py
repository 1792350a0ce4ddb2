"""What runs inside a sandbox, as a script of a fresh interpreter: standard library only, nothing of the project."""
