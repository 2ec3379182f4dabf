"""``make demo``: the main job told as a story with named faults, on real parts."""
