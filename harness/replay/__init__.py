"""Replay in a worker process: numpy, one runtime, Python 3.8 or later. Never torch."""
