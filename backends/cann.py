"""Huawei Ascend through ATC and pyACL: each part becomes offline models (``.om``), which nothing but the device can run.

``cann`` keeps the graph's float32 or is refused (``must_keep_origin_dtype``: ATC's own default is fp16); ``cann:fp16`` is
``force_fp16``, ``cann:mixed`` is ``allow_mix_precision``. An offline model has fixed shapes, of which one dimension may
come in up to 100 buckets: batch and source are compiled in, the cache's length is the bucket, exact and never padded.
A bucket of length 0 does not exist, so ``unified`` is unsupported. Sources: hiascend.com, CANN 7 and 8, ATC and pyACL.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from backends import contract

MODES = {
    "fp32": "must_keep_origin_dtype",
    "force_fp32": "force_fp32",
    "fp16": "force_fp16",
    "mixed": "allow_mix_precision",
}
DTYPES = {0: "float32", 1: "float16", 2: "int8", 3: "int32", 4: "uint8", 9: "int64", 12: "bool"}
CODES = {
    100000: "INVALID_PARAM", 100001: "UNINITIALIZE", 100002: "REPEAT_INITIALIZE", 100003: "INVALID_FILE",
    107002: "RT_CONTEXT_NULL", 107000: "RT_PARAM_INVALID", 200000: "BAD_ALLOC", 200001: "API_NOT_SUPPORT",
    200002: "INVALID_DEVICE", 200006: "FEATURE_UNSUPPORTED", 207001: "RT_MEMORY_ALLOCATION", 300000: "STORAGE_OVER_LIMIT",
    500000: "INTERNAL_ERROR", 500001: "FAILURE", 500002: "GE_FAILURE", 500003: "RT_FAILURE", 507011: "RT_MODEL_EXECUTE",
}  # fmt: skip
REFUSALS = [("opset", "opset"), ("ir version", "ir"), ("no parser is registered", "operator"), ("optype", "operator"),
            ("operator", "operator"), ("dtype", "dtype"), ("data type", "dtype"), ("shape", "shape")]  # fmt: skip
GEARS = 100
SMALL = {"batch": 1, "source": 8, "past": 1}
TO_DEVICE, TO_HOST = 1, 2
TOOLKIT = "install the CANN toolkit and source its set_env.sh in this shell"


class Backend(contract.Backend):
    """Device 0."""

    capabilities = contract.Capabilities(zero_length_dims=False)

    def probe(self) -> contract.Probe:
        mode = self.provider or "fp32"
        if mode not in MODES:
            raise contract.Absent(f"cann has no mode {mode!r}", f"use cann or cann: and one of {', '.join(MODES)}")
        try:
            import acl
        except ImportError as error:
            raise contract.Absent(f"pyACL cannot be imported: {error}", TOOLKIT) from error
        if shutil.which("atc") is None:
            raise contract.Absent("atc, the model compiler, is not on PATH", TOOLKIT)
        self.acl, self.mode = acl, MODES[mode]
        code = acl.init()  # and no finalize: a worker serves one backend, and its end gives the device back
        if code != 100002:  # this process did it before
            self.check("acl.init", code)
        count, code = acl.rt.get_device_count()
        if code or not count:
            raise contract.Absent(
                f"no Ascend device: {_named(code)}", "plug it in and install its driver; try npu-smi info"
            )
        self.check("acl.rt.set_device", acl.rt.set_device(0))
        self.soc = acl.get_soc_name()
        self.files = {}  # type: Dict[Tuple[str, ...], str]
        self.folder = tempfile.TemporaryDirectory(prefix="cann-")
        self.precision = "fp16" if "16" in self.mode or "mix" in self.mode else "fp32"
        return contract.Probe(contract.version_of(acl, _toolkit()), self.soc.lower(), self.precision)

    def check(self, call: str, code: int) -> None:
        """Raises RuntimeError that names the call and the code, with what the library says of it."""
        if code:
            raise RuntimeError(f"{call}: {_named(code)}: {self.acl.get_recent_err_msg() or 'no further word'}")

    def compile(self, part: contract.Part, options: Dict[str, Any]) -> contract.Program:
        self.offline(part, SMALL)  # so that what ATC refuses is refused now, and not in the middle of a decode
        return _Program(self, part)

    def offline(self, part: contract.Part, sizes: Dict[str, int]) -> str:
        """Path of the part's offline model for these sizes, compiled when it is new. Raises StageError."""
        fixed = {**sizes, "past": -1}
        shapes = [[fixed.get(size, size) for size in port.shape] for port in part.inputs]
        words = ["--input_shape=" + ";".join(f"{port.name}:{_list(shape)}" for port, shape in zip(part.inputs, shapes))]
        moving = sum(shape.count(-1) for shape in shapes)
        if moving:
            first = (sizes["past"] - 1) // GEARS * GEARS + 1
            words.append("--dynamic_dims=" + ";".join(_list([past] * moving) for past in range(first, first + GEARS)))
        key = (part.path, *words)
        if key not in self.files:
            place = os.path.join(self.folder.name, f"{part.name}-{len(self.files)}")
            command = ["atc", "--framework=5", f"--model={part.path}", f"--output={place}", f"--soc_version={self.soc}"]
            command += ["--input_format=ND", f"--precision_mode={self.mode}", "--log=error", *words]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder.name)
            said = done.stdout.decode("utf-8", "replace").strip()
            if done.returncode or not os.path.exists(place + ".om"):
                raise contract.refusal("build", [said or "atc gave no model"], REFUSALS)
            self.files[key] = place + ".om"
        return self.files[key]


def _named(code: int) -> str:
    return f"ACL_ERROR_{CODES[code]} ({code})" if code in CODES else f"code {code}"


def _list(sizes: Any) -> str:
    return ",".join(map(str, sizes))


def _toolkit() -> str:
    """The toolkit's version from the file it brings; pyACL tells only that of its own interface."""
    for name in ("opp/version.info", "compiler/version.info", "version.cfg"):
        place = os.path.join(os.environ.get("ASCEND_TOOLKIT_HOME", "/usr/local/Ascend/ascend-toolkit/latest"), name)
        with contextlib.suppress(OSError), open(place, encoding="utf-8") as stream:
            found = re.search(r"version\D*=\W*([\w.]*\d[\w.]*)", stream.read(), re.IGNORECASE)
            if found:
                return found[1]
    return "unknown"


class _Program(contract.Program):
    """One offline model is loaded at a time, with its buffers; everything is released in the reverse order."""

    def __init__(self, backend: Backend, part: contract.Part) -> None:
        self.backend, self.acl, self.check, self.part = backend, backend.acl, backend.check, part
        self.path, self.owned = "", contextlib.ExitStack()

    def _load(self, path: str) -> None:
        mdl, self.path = self.acl.mdl, ""
        self.owned.close()
        self.model = self._made("acl.mdl.load_from_file", mdl.load_from_file(path), mdl.unload)
        self.desc = mdl.create_desc()
        self.owned.callback(mdl.destroy_desc, self.desc)
        self.check("acl.mdl.get_desc", mdl.get_desc(self.desc, self.model))
        self.inputs = self._dataset(mdl.get_num_inputs(self.desc), mdl.get_input_size_by_index)
        self.outputs = self._dataset(mdl.get_num_outputs(self.desc), mdl.get_output_size_by_index)
        if len(self.outputs[1]) != len(self.part.outputs):
            raise RuntimeError(f"{path} has {len(self.outputs[1])} outputs, the graph {len(self.part.outputs)}")
        self.path = path

    def _made(self, call: str, answer: Tuple[Any, int], release: Any) -> Any:
        """What a call made, released with the rest."""
        self.check(call, answer[1])
        self.owned.callback(release, answer[0])
        return answer[0]

    def _dataset(self, count: int, size_of: Any) -> Tuple[Any, List[Tuple[Any, int]]]:
        """A dataset with a buffer for each input or output: (dataset, [(address, bytes)])."""
        acl, buffers = self.acl, []
        dataset = acl.mdl.create_dataset()
        self.owned.callback(acl.mdl.destroy_dataset, dataset)
        for at in range(count):
            size = size_of(self.desc, at)
            memory = self._made("acl.rt.malloc", acl.rt.malloc(size, 0), acl.rt.free)
            data = acl.create_data_buffer(memory, size)
            self.owned.callback(acl.destroy_data_buffer, data)
            self.check("acl.mdl.add_dataset_buffer", acl.mdl.add_dataset_buffer(dataset, data)[1])
            buffers.append((memory, size))
        return dataset, buffers

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        sizes = {
            word: size
            for port in self.part.inputs
            for word, size in zip(port.shape, feeds[port.name].shape)
            if isinstance(word, str)
        }
        path = self.backend.offline(self.part, sizes)
        try:
            if path != self.path:
                self._load(path)
            self._feed(feeds)
            self.check("acl.mdl.execute", self.acl.mdl.execute(self.model, self.inputs[0], self.outputs[0]))
            return {port.name: self._given(at) for at, port in enumerate(self.part.outputs)}
        except RuntimeError as error:
            raise contract.refusal("run", [str(error)], REFUSALS) from error

    def _index(self, name: str) -> Tuple[int, int]:
        return self.acl.mdl.get_input_index_by_name(self.desc, name)  # type: ignore[no-any-return]

    def _feed(self, feeds: Dict[str, np.ndarray]) -> None:
        acl, shapes = self.acl, {}
        for name, array in feeds.items():
            at, code = self._index(name)
            self.check(f"acl.mdl.get_input_index_by_name {name}", code)
            raw = np.ascontiguousarray(array, DTYPES[acl.mdl.get_input_data_type(self.desc, at)]).tobytes()
            memory, size = self.inputs[1][at]
            source = acl.util.bytes_to_ptr(raw)
            self.check(f"acl.rt.memcpy {name}", acl.rt.memcpy(memory, size, source, len(raw), TO_DEVICE))
            shapes[at] = array.shape
        at, code = self._index("ascend_mbatch_shape_data")
        if not code:  # a model with buckets has this input, and wants to know the sizes of all others
            sizes = [size for index in sorted(shapes) for size in shapes[index]]
            dims = {"name": "", "dimCount": len(sizes), "dims": sizes}
            code = acl.mdl.set_input_dynamic_dims(self.model, self.inputs[0], at, dims)
            self.check("acl.mdl.set_input_dynamic_dims", code)

    def _given(self, at: int) -> np.ndarray:
        """An output of the sizes that this run had: the buffer is made for the largest bucket."""
        acl = self.acl
        dims, code = acl.mdl.get_cur_output_dims(self.desc, at)
        self.check("acl.mdl.get_cur_output_dims", code)
        array = np.empty(dims["dims"], DTYPES[acl.mdl.get_output_data_type(self.desc, at)])
        host, code = acl.rt.malloc_host(array.nbytes)
        self.check("acl.rt.malloc_host", code)
        try:
            code = acl.rt.memcpy(host, array.nbytes, self.outputs[1][at][0], array.nbytes, TO_HOST)
            self.check("acl.rt.memcpy", code)
            array.reshape(-1).view(np.uint8)[:] = np.frombuffer(acl.util.ptr_to_bytes(host, array.nbytes), np.uint8)
        finally:
            self.check("acl.rt.free_host", acl.rt.free_host(host))
        return array

    def placement(self) -> Optional[contract.Placement]:
        if not self.path:
            return None
        said = f"offline model on {self.acl.get_soc_name()}, which has no way back to the host; {self.backend.mode}"
        return contract.Placement(self.acl.get_soc_name().lower(), self.backend.precision, said)

    def close(self) -> None:
        self.path = ""
        self.owned.close()

    def __del__(self) -> None:
        self.close()
