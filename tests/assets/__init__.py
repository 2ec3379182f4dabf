"""Tests of the exported assets: small rule texts for the rules of the game, and the project's own files."""
