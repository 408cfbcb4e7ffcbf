"""FAKE of pycuda, for tests: see fake_device."""

__fake__ = True
