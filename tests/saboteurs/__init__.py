"""Known-bad backends, by kind of fault, each declared with what the harness must say of it; and honest controls."""
