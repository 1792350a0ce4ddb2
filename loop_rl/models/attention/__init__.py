"""Attention contexts: who attends to whom, at which positions, through which KV banks."""
