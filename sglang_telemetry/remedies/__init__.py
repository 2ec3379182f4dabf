"""Opt-in remedies around a sync: each is off until it is asked for by name, and a sync without them is unchanged."""
