"""Tests of the harness: known-bad backends that must be caught, honest ones that must pass."""
