"""Mistakes planted in the TensorRT adapter and its helpers, one at a time: a fake of TensorRT must notice each."""

import pytest

from tests import faked

pytestmark = pytest.mark.usefixtures("engine_cache")

NAMED, NUMBERED = "8.5.3", "8.4.1"
MISTAKES = [
    ("no synchronize", "        self.api.synchronize(self.device.stream)\n", "", NAMED, "not synchronized"),
    (
        "no synchronize, numbered",
        "        self.api.synchronize(self.device.stream)\n",
        "",
        NUMBERED,
        "not synchronized",
    ),
    ("the wrong stream", "execute_async_v3(stream))", "execute_async_v3(0))", NAMED, "is no stream"),
    (
        "another stream",
        "execute_async_v3(stream))",
        "execute_async_v3(int(self.backend.gpu.api.stream())))",
        NAMED,
        "not synchronized",
    ),
    ("dtype of the wrong size", '"INT32": "int32"', '"INT32": "int64"', NAMED, "bytes were written"),
    (
        "an uncast feed",
        "np.ascontiguousarray(array, dtype)",
        "np.ascontiguousarray(array)",
        NAMED,
        "bytes were written",
    ),
    (
        "addresses not set",
        "known = all(context.set_tensor_address(name, memory[name]) for name in self.key)",
        "known = True",
        NAMED,
        "address of input_ids was never set",
    ),
    (
        "one address not set",
        "memory[name]) for name in self.key)",
        "memory[name]) for name in list(self.key)[1:])",
        NAMED,
        "was never set",
    ),
    (
        "bindings in another order",
        "execute_async_v2([memory[name] for name in self.key]",
        "execute_async_v2([memory[name] for name in reversed(list(self.key))]",
        NUMBERED,
        "kernel",
    ),
    (
        "shapes not set",
        "if not self.set_shape(self.key[name], array.shape)",
        "if not array.shape",
        NAMED,
        "negative dimensions are not allowed",
    ),
    (
        "freed twice",
        "self.device.keep(array, self.own.pop(name))",
        "self.device.keep(array, self.own[name])",
        NAMED,
        "double free",
    ),
    (
        "freed before it is read",
        "        self.api.download(array, self.own[name])",
        "        self.api.free(self.own[name])\n        self.api.download(array, self.own[name])",
        NAMED,
        "use after free",
    ),
    ("inputs leak", "                self.api.free(memory)", "                pass", NAMED, "blocks of device memory"),
    ("outputs leak", "weakref.finalize(array, lambda: free(outputs.pop(key))).atexit = False", "pass", NAMED, "leak"),
    ("the stream leaks", "            self.api.end(self.stream)", "            pass", NAMED, "streams were never"),
    (
        "too small a buffer",
        "        self._new(name, array.nbytes)\n\n    def run",
        "        self._new(name, array.nbytes // 2)\n\n    def run",
        NAMED,
        "are allocated",
    ),
    (
        "the engine goes before its context",
        "[context, loaded, runtime, self.log]",
        "[loaded, context, runtime, self.log]",
        NAMED,
        "",
    ),
    (
        "the runtime goes at once",
        "[context, loaded, runtime, self.log]",
        "[context, loaded, None, self.log]",
        NAMED,
        "Runtime destroyed before its ICudaEngine",
    ),
    (
        "the network outlives no parser",
        "        return builder, network",
        "        self.parser = self.trt.OnnxParser(network, self.log)\n        return builder, network",
        NAMED,
        "INetworkDefinition destroyed before its OnnxParser",
    ),
    ("no explicit batch", "1 << int(flags.EXPLICIT_BATCH) if", "0 if", NAMED, "without EXPLICIT_BATCH"),
    (
        "no profile",
        "            config.add_optimization_profile(profile)",
        "            pass",
        NAMED,
        "no optimization profile",
    ),
    ("a profile upside down", '"past": (0, 64, 512)', '"past": (0, 512, 64)', NAMED, "does not hold"),
    ("TF32 stays on", "        config.clear_flag(self.trt.BuilderFlag.TF32)\n", "", NAMED, "in tf32"),
    (
        "names alone",
        "        config.profiling_verbosity = self.trt.ProfilingVerbosity.DETAILED",
        "        #",
        NAMED,
        "no proof",
    ),
    (
        "the workspace is not bounded",
        "        config.set_memory_pool_limit(self.trt.MemoryPoolType.WORKSPACE, WORKSPACE)",
        "        pass",
        NAMED,
        "set_memory_pool_limit",
    ),
    (
        "a logger for each part",
        "        self.log.errors.clear()  # one logger for all parts",
        "        self.log = logs.tensorrt_logger(self.trt, self.note)  #",
        NAMED,
        "another logger is registered",
    ),
    (
        "a logger that is half made",
        "        errors: ClassVar",
        "        __init__ = object.__init__\n        errors: ClassVar",
        NAMED,
        "__init__ was not called",
    ),
    (
        "copies go the other way",
        "kind = self.api.cudaMemcpyKind.cudaMemcpyHostToDevice",
        "kind = self.api.cudaMemcpyKind.cudaMemcpyDeviceToHost",
        NAMED,
        "copy to the host",
    ),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name, right, wrong, version, expected", MISTAKES, ids=[row[0] for row in MISTAKES])
def test_a_planted_mistake_is_caught(name: str, right: str, wrong: str, version: str, expected: str) -> None:
    with faked.fakes(VERSION=version) as device:
        rows, faults = faked.replay(device, faked.adapter("tensorrt", {right: wrong}), checks=faked.CHECKS)
    messages = [
        *faults,
        *(f"{row.message} {row.detail.get('said', '')}" for row in rows.values() if row.status != "PASS"),
    ]
    assert messages, f"{name}: nothing was noticed"
    assert any(expected in message for message in messages), messages
