"""Recipes: a schema for each kind of run, read with inheritance and overrides, every fault said in one line."""
