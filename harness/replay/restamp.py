"""A graph refused for its IR version alone, tried again under an older stamp: the IR version says how a file is written,
not what it computes, and exporters stamp a newer one than the graph needs."""

import contextlib
import os
import shutil
import tempfile
from dataclasses import replace
from typing import Iterator, Tuple

from backends.contract import Backend, Part, StageError
from harness.core.messages import one_line
from harness.core.rows import Answer
from harness.replay.job import Job, Programs, compile_parts

FIELD = 0x08
"""Tag of ModelProto.ir_version, which protobuf writes first; the version is the one byte that follows."""
OLDEST = 3


@contextlib.contextmanager
def restamped(backend: Backend, job: Job, refusal: StageError) -> Iterator[Tuple[Job, Programs]]:
    """The job on copies of its files, under the newest older IR version that the backend does not refuse, compiled.

    Raises the refusal as it was when no stamp helps, with what came instead when the graph is then refused for another
    reason.
    """
    with tempfile.TemporaryDirectory(prefix="restamped-") as folder:
        for name in job.bundle.weights(job.graph):
            shutil.copy(os.path.join(job.bundle.path, name), folder)
        for stamp in range(job.graph.ir - 1, OLDEST - 1, -1):
            again = replace(job, graph=replace(job.graph, ir=stamp, parts=_parts(job, folder, stamp)))
            try:
                programs = compile_parts(backend, again)
            except StageError as error:
                if error.kind == "ir":
                    continue
                words = (
                    f"{one_line(refusal.message)}; re-stamped as IR {stamp}: {error.kind}: {one_line(error.message)}"
                )
                raise StageError(refusal.stage, "ir", words) from error
            with programs:
                yield again, programs
            return
    raise refusal


def _parts(job: Job, folder: str, stamp: int) -> Tuple[Part, ...]:
    parts = []
    for part in job.graph.parts:
        path = os.path.join(folder, os.path.basename(part.path))
        with open(part.path, "rb") as stream:
            content = bytearray(stream.read())
        if content[0] != FIELD or content[1] != job.graph.ir:
            raise StageError("parse", "ir", f"{part.path} does not begin with its IR version; it cannot be re-stamped")
        content[1] = stamp
        with open(path, "wb") as stream:
            stream.write(content)
        parts.append(replace(part, path=path))
    return tuple(parts)


def as_shipped(answer: Answer, refusal: StageError, stamp: int) -> Answer:
    """The answer that a re-stamped graph gave, as one about the graph that was shipped: refused, and what would help."""
    seen = {"ir": stamp, "status": answer.status, "message": answer.message}
    return replace(
        answer,
        status="UNSUPPORTED",
        stage=refusal.stage,
        kind="ir",
        knob=f"ir={stamp}" if answer.status == "PASS" else "",
        message=f"{one_line(refusal.message)}; re-stamped as IR {stamp}: {answer.status} {answer.message}".strip(),
        detail={**answer.detail, "restamped": seen},
    )
