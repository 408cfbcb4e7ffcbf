"""The conformance harness: does this runtime, on this box, decode like PyTorch?"""
