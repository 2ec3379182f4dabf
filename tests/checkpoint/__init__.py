"""Checkpoint folders, good and broken ones, read without torch."""
