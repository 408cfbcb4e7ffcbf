"""What several tests of conformance runs need: options of a small run, a wrong adapter, and what a run said."""

import re
import subprocess
from pathlib import Path

from tests import helpers

ONE_CELL = ("--opset=17", "--layout=unified")
OFFSET = '''
"""ONNX Runtime, wrong by one in one logit from step 5 on."""

from backends import ort


class Offset(ort.Backend):
    def compile(self, part, options):
        program = super().compile(part, options)
        if part.name == "step":
            honest = program.run

            def run(feeds):
                outputs = honest(feeds)
                if feeds["past_key_values.0.decoder.key"].shape[2] >= 5:
                    outputs["logits"][..., 3] += 1.0
                return outputs

            program.run = run
        return program
'''
"""Source of an adapter that is wrong in one logit."""
Done = subprocess.CompletedProcess


def error_line(done: "Done[str]") -> str:
    """The one line of a usage error; what pytest's own parser says of an option stands under its usage."""
    output = done.stdout + done.stderr
    assert "Traceback" not in output
    lines = [line for line in output.splitlines() if re.match(r"(ERROR|.*pytest.*: error): (?!usage: )", line)]
    assert len(lines) == 1, output
    return lines[0]


def statuses(results: Path) -> dict[str, str]:
    """Last status of each cell and check, keyed ``unified/op17 logits``."""
    last = {}
    for row in helpers.rows_in(results):
        cell = f"{row['layout']}/op{row['opset']}" if row["cell"] else row["backend"]
        last[f"{cell} {row['check']}"] = row["status"]
    return last
