"""Known-bad backends that the harness must catch."""
