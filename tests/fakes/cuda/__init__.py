"""FAKE of cuda-bindings, for tests: see fake_device."""

__fake__ = True
