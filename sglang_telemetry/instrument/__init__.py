"""Puts marks into a call of ``update_policy`` without changing what it does; the only room that looks at torch."""
