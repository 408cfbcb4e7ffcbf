"""Rockchip's NPUs, in fp16: ``rknn:rk3566`` is the simulator of rknn-toolkit2 on a PC, ``rknn:rk3566_board`` a board.

A board is reached from a PC (``target=``, over adb), or it is the box itself with rknn-toolkit-lite2, which cannot build:
build with the toolkit of the same version on a PC, which needs no board for that, and copy the cache of engines (`engines`)
to the board. The simulator is part of the compiler, so its engines are not kept. Sources: the toolkit's docstrings and the
RKNN Toolkit2 API reference in github.com/airockchip/rknn-toolkit2.
"""

import os
import re
import tempfile
from dataclasses import replace
from importlib import metadata
from typing import Any, Callable, Dict, List, Optional

import numpy as np

from backends import contract, engines, logs, staged

TARGETS = ("rk3588", "rk3576", "rk3568", "rk3566", "rk3562")
INSTALL = "conform envs create rknn@2.5.0, then --backend=rknn@2.5.0; on a board: pip install rknn-toolkit-lite2"
REFUSALS = [
    ("onnx opset", "opset"),
    ("ir version", "ir"),
    ("unsupport op", "operator"),
    ("not support op", "operator"),
    ("op type", "operator"),
    ("shape", "shape"),
    ("dims", "shape"),
    ("dtype", "dtype"),
    ("data type", "dtype"),
]
SIMULATED = "Target is None, use simulator"  # what the toolkit prints
VERSIONS = r"(?:API|DRV|rknnrt)\D*?(\d+\.\d+)"  # of the toolkit, and of the board's library


class Backend(staged.Staged):
    """One NPU, an rk3588 unless the selector names another. Shapes are fixed when an engine is built."""

    modes = (*TARGETS, *(f"{target}_board" for target in TARGETS))
    capabilities = contract.Capabilities(
        dynamic_dims=False,
        zero_length_dims=False,
        layouts=frozenset({"static", "static-scatter"}),
        knobs={"optimization_level=0": contract.Knob({"optimization_level": 0})},
    )

    def probe(self) -> contract.Probe:
        self.target, _, board = (self.provider or TARGETS[0]).partition("_")
        self.cached, self.lite = bool(board), False
        try:
            from rknn.api import RKNN as api
        except ImportError as error:
            try:
                from rknnlite.api import RKNNLite as api
            except ImportError:
                raise contract.Absent(f"rknn-toolkit2 cannot be imported: {error}", INSTALL) from error
            if not board:
                remedy = f"--backend=rknn:{self.target}_board"
                raise contract.Absent("rknn-toolkit-lite2 has no simulator", remedy) from error
            self.lite = True
        self.api = api
        version = metadata.version("rknn-toolkit-lite2" if self.lite else "rknn-toolkit2")
        if board and not self.lite and not self._connected():
            remedy = "connect one over USB; adb devices lists it"
            self.missing = contract.Absent(f"no {self.target} is connected", remedy)
            self.capabilities = replace(self.capabilities, deepest_stage="build")
        device, execution = (self.target, "device") if board else (f"simulator-{self.target}", "simulator")
        self.probed = contract.Probe(version, device, "fp16", execution)
        return self.probed

    def _connected(self) -> bool:
        with logs.captured():
            return any(self.api(verbose=False).list_devices())

    def parse(self, part: contract.Part, options: Dict[str, Any]) -> Any:
        """An object of the toolkit that has read the part."""
        if self.lite:
            advice = f"build on a PC with --backend=rknn@{self.probed.version}:{self.target}_board"
            message = f"rknn-toolkit-lite2 cannot build: {advice}, and copy {engines.folder()} to this box"
            raise contract.StageError("parse", "other", message)
        rknn = self.api(verbose=False)
        level = {name: options[name] for name in ("optimization_level",) if name in options}
        self._call("parse", rknn.config, target_platform=self.target, float_dtype="float16", **level)
        self._call("parse", rknn.load_onnx, part.path)
        return rknn

    def build(self, parsed: Any, part: contract.Part, options: Dict[str, Any]) -> bytes:
        self._call("build", parsed.build, do_quantization=False)
        with tempfile.TemporaryDirectory(prefix="rknn-") as folder:
            path = os.path.join(folder, "built.rknn")
            self._call("build", parsed.export_rknn, path)
            with open(path, "rb") as stream:
                return stream.read()

    def load(
        self, engine: engines.Engine, parsed: Any, part: contract.Part, options: Dict[str, Any]
    ) -> contract.Program:
        if not self.cached:
            return _Program(self, part, parsed, self._call("load", parsed.init_runtime))
        rknn = self.api(verbose=False)
        self._call("load", rknn.load_rknn, engine.path)
        log = self._call("load", rknn.init_runtime, **({} if self.lite else {"target": self.target}))
        versions = " ".join(str(rknn.get_sdk_version()).split())
        numbers = re.findall(VERSIONS, versions)
        if len(set(numbers)) > 1:
            reason = f"the board's runtime is not of the toolkit's version: {versions}"
            raise contract.StageError("load", "other", f"{reason}; put librknnrt.so {numbers[0]} on the board")
        return _Program(self, part, rknn, [*log, versions])

    def _call(self, stage: str, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> List[str]:
        """Call a function of the toolkit, which may raise, return a code, or both. Returns what it prints.

        Raises StageError for an exception and for a code that is not 0.
        """
        code, error = -1, None
        try:
            with logs.captured() as lines:
                code = function(*arguments, **keywords)
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - it raises whatever its parts do, and may exit
            error = raised
        lines = [line for line in map(_plain, lines) if line]
        self.note("\n".join(lines))
        if error is None and not code:
            return lines
        errors = [line[2:] for line in lines if line.startswith("E ") and "Unkown op target: 0" not in line]
        messages = [_last(str(error))] if error else errors or [f"{function.__name__} returned {code}"]
        raise contract.refusal(stage, messages, REFUSALS) from error


def _plain(line: str) -> str:
    """A line of the log without colours, or nothing for a progress bar."""
    line = re.sub(r"\x1b\[[\d;]*m|\r", "", line).strip()
    return "" if "%|" in line or "it/s]" in line else line


def _last(traceback: str) -> str:
    """The message of the last error in the text of a traceback, which is what the toolkit raises."""
    return " ".join(re.split(r"^\w*(?:Error|Exception): ", traceback, flags=re.MULTILINE)[-1].split())


class _Program(contract.Program):
    def __init__(self, backend: Backend, part: contract.Part, rknn: Any, log: List[str]) -> None:
        self.backend, self.part, self.rknn, self.log = backend, part, rknn, log

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        inputs = [feeds[port.name] for port in self.part.inputs]
        outputs: Any = []

        def infer() -> int:
            # Unless told otherwise it takes arrays of four axes as NHWC and would transpose the cache.
            outputs[:] = self.rknn.inference(inputs=inputs, data_format=["nchw"] * len(inputs)) or []
            return 0 if len(outputs) == len(self.part.outputs) else -1

        self.backend._call("run", infer)
        return {port.name: np.array(output) for port, output in zip(self.part.outputs, outputs)}

    def placement(self) -> Optional[contract.Placement]:
        """The simulator, when the toolkit printed that it is used; a board, by the versions that it reported."""
        log = " ".join(self.log)
        if (SIMULATED in log) == self.backend.cached:
            return None
        evidence = f"{log}; built with float_dtype float16 for {self.backend.target}"
        return contract.Placement(self.backend.probed.device, "fp16", evidence)

    def close(self) -> None:
        rknn, self.rknn = self.rknn, None
        if rknn is not None:
            rknn.release()
