"""The journal: one append-only JSON Lines file a process, which outlives the process however it dies."""
