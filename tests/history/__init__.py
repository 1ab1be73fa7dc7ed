"""Recorded histories of claims, and what must be true of each of them."""
