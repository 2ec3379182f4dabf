"""Tests of the remedies, one by one."""
