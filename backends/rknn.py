"""Rockchip's NPUs, in fp16: ``rknn:rk3566`` is the simulator of rknn-toolkit2 on a PC, ``rknn:rk3566_board`` a board.

Sources: the toolkit's own docstrings and the RKNN Toolkit2 API reference in github.com/airockchip/rknn-toolkit2. A board is
reached from a PC (``target=``, over adb), or is the box itself with rknn-toolkit-lite2, which builds nothing: build with the
toolkit of the same version on a PC, which needs no board for it, and carry the folder of engines (`staged`). The simulator
is part of the compiler, so what it runs cannot be kept.
"""

import os
import re
import tempfile
from dataclasses import replace
from importlib import metadata
from typing import Any, Callable, Dict, List

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
SIMULATED = "Target is None, use simulator"


class Backend(staged.Staged):
    """One NPU, rk3588 unless the selector says another. Shapes are fixed when it builds."""

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
                here = f"--backend=rknn:{self.target}_board"
                raise contract.Absent("rknn-toolkit-lite2 has no simulator, which cannot be run here", here) from error
            self.lite = True
        self.api = api
        version = metadata.version("rknn-toolkit-lite2" if self.lite else "rknn-toolkit2")
        if board and not self.lite and not self._connected():
            self.missing = contract.Absent(
                f"no {self.target} is connected", "connect one over USB; adb devices lists it"
            )
            self.capabilities = replace(self.capabilities, deepest_stage="build")
        device, execution = (self.target, "device") if board else (f"simulator-{self.target}", "simulator")
        self.probed = contract.Probe(version, device, "fp16", execution)
        return self.probed

    def _connected(self) -> bool:
        with logs.captured():
            return any(self.api(verbose=False).list_devices())

    def parse(self, part: contract.Part, options: Dict[str, Any]) -> Any:
        """The toolkit with the part in it."""
        if self.lite:
            where = f"build on a PC with --backend=rknn@{self.probed.version}:{self.target}_board"
            reason = f"rknn-toolkit-lite2 builds nothing: {where}, and carry {engines.folder()} here"
            raise contract.StageError("parse", "other", reason)
        rknn = self.api(verbose=False)
        level = {name: options[name] for name in ("optimization_level",) if name in options}
        self._do("parse", rknn.config, target_platform=self.target, float_dtype="float16", **level)
        self._do("parse", rknn.load_onnx, part.path)
        return rknn

    def build(self, parsed: Any, part: contract.Part, options: Dict[str, Any]) -> bytes:
        self._do("build", parsed.build, do_quantization=False)
        with tempfile.TemporaryDirectory(prefix="rknn-") as folder:
            place = os.path.join(folder, "built.rknn")
            self._do("build", parsed.export_rknn, place)
            with open(place, "rb") as stream:
                return stream.read()

    def load(
        self, engine: engines.Engine, parsed: Any, part: contract.Part, options: Dict[str, Any]
    ) -> contract.Program:
        if not self.cached:
            return _Program(self, part, parsed, self._do("load", parsed.init_runtime))
        rknn = self.api(verbose=False)
        self._do("load", rknn.load_rknn, engine.path)
        said = self._do("load", rknn.init_runtime, **({} if self.lite else {"target": self.target}))
        versions = str(rknn.get_sdk_version())
        numbers = re.findall(
            r"(?:API|DRV|rknnrt)\D*?(\d+\.\d+)", versions
        )  # of the toolkit, and of the board's library
        if len(set(numbers)) > 1:
            reason = f"the board's runtime is not of the toolkit's version: {' '.join(versions.split())}"
            raise contract.StageError("load", "other", f"{reason}; put librknnrt.so {numbers[0]} on the board")
        return _Program(self, part, rknn, [*said, " ".join(versions.split())])

    def _do(self, stage: str, call: Callable[..., Any], *given: Any, **named: Any) -> List[str]:
        """One step of the toolkit, and what it prints. It raises, or returns a code, or both."""
        said, code, error = [], -1, None  # type: List[str], Any, Any
        try:
            with logs.captured() as said:
                code = call(*given, **named)
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - it raises whatever its parts do, and may exit
            error = raised
        said = [line for line in map(_plain, said) if line]
        self.note("\n".join(said))
        if error is not None or code:
            errors = [line[2:] for line in said if line.startswith("E ") and "Unkown op target: 0" not in line]
            told = [_last(str(error))] if error else errors or [f"{call.__name__} returned {code}"]
            raise contract.refusal(stage, told, REFUSALS) from error
        return said


def _plain(line: str) -> str:
    """A line of the log without colours and progress bars."""
    line = re.sub(r"\x1b\[[\d;]*m|\r", "", line).strip()
    return "" if "%|" in line or "it/s]" in line else line


def _last(traceback: str) -> str:
    """Errors come as the text of a traceback: what is said after the last name of an error."""
    return " ".join(re.split(r"^\w*(?:Error|Exception): ", traceback, flags=re.MULTILINE)[-1].split())


class _Program(contract.Program):
    def __init__(self, backend: Backend, part: contract.Part, rknn: Any, said: List[str]) -> None:
        self.backend, self.part, self.rknn, self.said = backend, part, rknn, said

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        arrays = [feeds[port.name] for port in self.part.inputs]
        found = []  # type: Any

        def infer() -> int:
            # It takes arrays of four axes as NHWC unless told, and would turn the cache around.
            found[:] = self.rknn.inference(inputs=arrays, data_format=["nchw"] * len(arrays)) or []
            return 0 if len(found) == len(self.part.outputs) else -1

        self.backend._do("run", infer)
        return {port.name: np.array(one) for port, one in zip(self.part.outputs, found)}

    def placement(self) -> "contract.Placement | None":
        """The simulator says so itself; of a board, the versions that it answered with."""
        device, said = self.backend.probed.device, " ".join(self.said)
        if (SIMULATED in said) == self.backend.cached:
            return None
        return contract.Placement(device, "fp16", f"{said}; built with float_dtype float16 for {self.backend.target}")

    def close(self) -> None:
        if self.rknn is not None:
            self.rknn = self.rknn.release()
