"""Adapters that die, hang, shout or refuse: ONNX Runtime but for one fault, on the cells whose opset FAULT_AT names."""

import ctypes
import importlib
import os
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np

from backends import contract, ort

STEP = 3
"""The run of the step part at which the fault strikes: something has been done by then, nothing has been answered."""


class Fault(ort.Backend):
    """``FAULT_AT`` (``op17`` unless set) says where; the other cells are honest."""

    def strike(self) -> None:
        raise NotImplementedError

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        program = super().compile(part, options)
        struck = part.name == "step" and f"-{os.environ.get('FAULT_AT', 'op17')}-" in part.path
        return _Struck(program, self.strike) if struck else program


class _Struck(contract.Program):
    def __init__(self, inner: contract.Program, strike: Any) -> None:
        self.inner, self.strike, self.runs = inner, strike, 0

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.runs += 1
        if self.runs == STEP:
            self.strike()
        return self.inner.run(feeds)

    def placement(self) -> contract.Placement | None:
        return self.inner.placement()


class Segfault(Fault):
    def strike(self) -> None:
        ctypes.string_at(0)


class Killed(Fault):
    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Exits(Fault):
    def strike(self) -> None:
        os._exit(7)


class Raises(Fault):
    def strike(self) -> None:
        raise RuntimeError("a fault of the adapter's own\nand its second line")


class Loud(Fault):
    """Megabytes on both streams, some of it in the shape of an answer."""

    def strike(self) -> None:
        garbage = b'{"row": {"check": "logits", "status": "PASS"}}\n\xff\x00{"done": 1}\n' * 40_000
        for stream in (1, 2):
            view = memoryview(garbage)
            while view:
                view = view[os.write(stream, view) :]


class LoudThenKilled(Loud):
    def strike(self) -> None:
        super().strike()
        os.write(2, b"the last words\n")
        os.kill(os.getpid(), signal.SIGKILL)


class Closes(Fault):
    """Closes every file that it did not open, as code that turns into a daemon does."""

    def strike(self) -> None:
        os.closerange(3, 256)


class Hangs(Fault):
    def strike(self) -> None:
        time.sleep(600)


class OverLimit(Fault):
    def strike(self) -> None:
        held = np.ones(2**30, np.uint8)
        time.sleep(600)
        held.sum()


class Parent(Fault):
    """Leaves a process behind; its id goes to the file that FAULT_FILE names."""

    def strike(self) -> None:
        child = subprocess.Popen(["sleep", "600"])
        with open(os.environ["FAULT_FILE"], "w", encoding="ascii") as stream:
            stream.write(str(child.pid))


class ParentThenKilled(Parent):
    def strike(self) -> None:
        super().strike()
        os.kill(os.getpid(), signal.SIGKILL)


class ParentThenHangs(Parent):
    def strike(self) -> None:
        super().strike()
        time.sleep(600)


class DiesTelling(ort.Backend):
    """Replays well, and dies when asked what did the work."""

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        return _Dying(super().compile(part, options), lambda: None)


class _Dying(_Struck):
    def placement(self) -> contract.Placement | None:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Refuses(ort.Backend):
    """Refuses every graph, in clear words."""

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        raise contract.StageError("load", "operator", "no kernel for MatMul on this device")


class Missing(ort.Backend):
    def probe(self) -> contract.Probe:
        raise contract.Absent("no such device on this box", "plug one in")


class KilledAtProbe(ort.Backend):
    def probe(self) -> contract.Probe:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class RaisesAtProbe(ort.Backend):
    def probe(self) -> contract.Probe:
        raise OSError("driver 3 is too old")


class Imports(ort.Backend):
    """Imports what FAULT_IMPORT names: shows that a poisoned module would be noticed."""

    def probe(self) -> contract.Probe:
        importlib.import_module(os.environ["FAULT_IMPORT"])
        return super().probe()


class Tells(ort.Backend):
    """Its evidence of placement is the list of the modules that the worker has imported."""

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        return _Telling(super().compile(part, options))


class _Telling(contract.Program):
    def __init__(self, inner: contract.Program) -> None:
        self.inner = inner

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self.inner.run(feeds)

    def placement(self) -> contract.Placement | None:
        return contract.Placement("cpu", "fp32", " ".join(sorted(sys.modules)))


class AtNode(ort.Backend):
    """``FAULT_NODE`` (a node test's name and opset, as its file is called) says where; the other tests are honest."""

    def strike(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        program = super().compile(part, options)
        return _AtNode(program, self.strike) if os.environ["FAULT_NODE"] in part.path else program


class _AtNode(contract.Program):
    def __init__(self, inner: contract.Program, strike: Any) -> None:
        self.inner, self.strike = inner, strike

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self.strike(self.inner.run(feeds))

    def placement(self) -> contract.Placement | None:
        return self.inner.placement()


class NodeWrong(AtNode):
    """One element of one output is off by more than the tolerance, and by less than two of them."""

    def strike(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        name, array = next(iter(outputs.items()))
        changed = array.copy()
        changed.flat[-1] = changed.flat[-1] * 1.002
        return {**outputs, name: changed}


class NodeWide(AtNode):
    """Right numbers in another dtype."""

    def strike(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: array.astype(np.float64) for name, array in outputs.items()}


class NodeMute(AtNode):
    def strike(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {}


class NodeLate(AtNode):
    """Loads, and refuses to run."""

    def strike(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise contract.StageError("run", "operator", "no kernel after all")


class NodeRaises(AtNode):
    def strike(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise RuntimeError("a fault of the adapter's own")


class NodeKilled(AtNode):
    def strike(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        ctypes.string_at(0)
        raise AssertionError


class NodeHangs(AtNode):
    def strike(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        time.sleep(600)
        raise AssertionError


class NodeRefuses(AtNode):
    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        if os.environ["FAULT_NODE"] in part.path:
            raise contract.StageError("load", "operator", f"no kernel; model {part.path}")
        return super().compile(part, options)


class NodeElsewhere(ort.Backend):
    """Says that another device did the work."""

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        return _Elsewhere(super().compile(part, options), lambda outputs: outputs)


class _Elsewhere(_AtNode):
    def placement(self) -> contract.Placement | None:
        return contract.Placement("npu", "fp32", "so it says")


class NodeUnproven(ort.Backend):
    """Gives no proof of what did the work."""

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        return _Unproven(super().compile(part, options), lambda outputs: outputs)


class _Unproven(_AtNode):
    def placement(self) -> contract.Placement | None:
        return None


class KnobFault(ort.Backend):
    """Wrong logits on the cells that FAULT_AT names; ``turn`` is called when a program of them is made with a knob."""

    def turn(self) -> None:
        raise NotImplementedError

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        program = super().compile(part, options)
        if f"-{os.environ.get('FAULT_AT', 'op17')}-" not in part.path:
            return program
        if set(options) - {"threads"}:
            self.turn()
        return _WrongLogits(program)


class _WrongLogits(contract.Program):
    def __init__(self, inner: contract.Program) -> None:
        self.inner = inner

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = self.inner.run(feeds)
        if "logits" in outputs:
            ramp = np.arange(outputs["logits"].shape[-1], dtype=np.float32)
            outputs["logits"] = outputs["logits"] + np.float32(0.01) * ramp
        return outputs

    def placement(self) -> contract.Placement | None:
        return self.inner.placement()

    def close(self) -> None:
        self.inner.close()


class KnobDies(KnobFault):
    def turn(self) -> None:
        ctypes.string_at(0)


class KnobRaises(KnobFault):
    def turn(self) -> None:
        raise RuntimeError("this runtime knows no such setting")


class KnobHangs(KnobFault):
    def turn(self) -> None:
        time.sleep(600)


class KnobDamages(KnobFault):
    """Once a knob is turned, every program of the process gives zeros, those of other cells and earlier ones too."""

    damaged = False

    def turn(self) -> None:
        KnobDamages.damaged = True

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        return _Damageable(super().compile(part, options))


class _Damageable(contract.Program):
    def __init__(self, inner: contract.Program) -> None:
        self.inner = inner

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = self.inner.run(feeds)
        return {name: array * 0 for name, array in outputs.items()} if KnobDamages.damaged else outputs

    def placement(self) -> contract.Placement | None:
        return self.inner.placement()

    def close(self) -> None:
        self.inner.close()
