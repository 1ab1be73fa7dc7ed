"""Inventory sources: what a host and its nodes have, one file and one name each."""
