"""One file per runtime. Without this package ``backends/openvino.py`` would shadow the library it imports."""
