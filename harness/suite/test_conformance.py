"""Does this runtime decode like PyTorch? One test a cell and check; ``pytest --backend=NAME`` chooses the runtimes."""

from collections.abc import Callable

from conform.plugin import conclude
from harness.run.conformance import Conformance, Question


def test_decodes_like_pytorch(
    conformance: Conformance, question: Question, record_property: Callable[[str, object], None]
) -> None:
    row = conformance.ask(question)
    for name in ("cell", "check", "status", "stage", "kind", "compared", "step", "blame", "knob", "command"):
        value = getattr(row, name)
        record_property(name, "" if value is None else value)
    conclude(row)
