"""Huawei Ascend through ATC and pyACL: each part becomes offline models (``.om``), which nothing but the device can run.

``cann`` keeps the graph's float32 or is refused (``must_keep_origin_dtype``: ATC's own default is fp16); ``cann:fp16`` is
``force_fp16``, ``cann:mixed`` is ``allow_mix_precision``; ``cann:force_fp32`` multiplies matrices in fp16, whatever its
name. Shapes are compiled in; the cache's length comes in up to 100 buckets, each exact, nothing is padded. None is 0,
so ``unified`` is unsupported. Sources: hiascend.com, ATC and pyACL of CANN 7 to 9.
"""

import os
import shutil
import subprocess
import tempfile
from typing import Any, Dict, Optional, Tuple

import numpy as np

from backends import ascend, contract

MODES = {  # ATC's name, and the precision to judge by
    "fp32": ("must_keep_origin_dtype", "fp32"),
    "force_fp32": ("force_fp32", "fp16"),
    "fp16": ("force_fp16", "fp16"),
    "mixed": ("allow_mix_precision", "fp16"),
}
DTYPES = {0: "float32", 1: "float16", 2: "int8", 3: "int32", 4: "uint8", 9: "int64", 12: "bool"}
REFUSALS = [("opset", "opset"), ("ir version", "ir"), ("optype", "operator"), ("operator", "operator")]
REFUSALS += [("dtype", "dtype"), ("data type", "dtype"), ("dynamic", "shape"), ("shape", "shape")]
GEARS = 100
SMALL = {"batch": 1, "source": 8, "past": 1}
TOOLKIT = "install the CANN toolkit and source its set_env.sh in this shell"
DRIVER = "plug it in and install its driver; try npu-smi info"


class Backend(contract.Backend):
    """Device 0."""

    capabilities = contract.Capabilities(zero_length_dims=False)
    modes = tuple(MODES)

    def probe(self) -> contract.Probe:
        try:
            import acl
        except ImportError as error:
            raise contract.Absent(f"pyACL cannot be imported: {error}", TOOLKIT) from error
        if shutil.which("atc") is None:
            raise contract.Absent("atc, the model compiler, is not on PATH", TOOLKIT)
        self.acl, (self.mode, self.precision) = acl, MODES[self.provider or "fp32"]
        code = acl.init()  # and no finalize: a worker serves one backend, and its end gives the device back
        if code != ascend.ALREADY_INITIALIZED:
            ascend.check(acl, "acl.init", code)
        count, code = acl.rt.get_device_count()
        if code or not count:
            raise contract.Absent(f"no Ascend device: {ascend.named(code)}", DRIVER)
        ascend.check(acl, "acl.rt.set_device", acl.rt.set_device(0))
        self.soc = acl.get_soc_name()
        self.files = {}  # type: Dict[Tuple[str, ...], str]
        self.folder = tempfile.TemporaryDirectory(prefix="cann-")
        return contract.Probe(
            contract.version_of(acl, ascend.toolkit()), self.soc.lower(), self.precision, contract.execution_of(acl)
        )

    def compile(self, part: contract.Part, options: Dict[str, Any]) -> contract.Program:
        self.offline(part, SMALL)  # so that what ATC refuses is refused now, and not in the middle of a decode
        return _Program(self, part)

    def offline(self, part: contract.Part, sizes: Dict[str, int]) -> str:
        """Path of the part's offline model for these sizes, compiled when it is new. Raises StageError."""
        fixed = {**sizes, "past": -1}
        shapes = [[_size(size, fixed) for size in port.shape] for port in part.inputs]
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


def _size(dim: contract.Dim, sizes: Dict[str, int]) -> contract.Dim:
    return sizes.get(dim, dim) if isinstance(dim, str) else dim


def _list(sizes: Any) -> str:
    return ",".join(map(str, sizes))


class _Program(contract.Program):
    """One offline model is loaded at a time, with its buffers."""

    def __init__(self, backend: Backend, part: contract.Part) -> None:
        self.backend, self.acl, self.part, self.path = backend, backend.acl, part, ""
        self.owned = ascend.Owned(self.acl)
        self.check = self.owned.check

    def _load(self, path: str) -> None:
        mdl, owned, self.path = self.acl.mdl, self.owned, ""
        owned.close()
        loaded = mdl.load_from_file(path)
        self.model = owned.made("acl.mdl.load_from_file", loaded, "acl.mdl.unload", mdl.unload)
        self.desc = owned.holds(mdl.create_desc(), "acl.mdl.destroy_desc", mdl.destroy_desc)
        self.check("acl.mdl.get_desc", mdl.get_desc(self.desc, self.model))
        self.inputs = owned.dataset(self.desc, mdl.get_num_inputs(self.desc), mdl.get_input_size_by_index)
        self.outputs = owned.dataset(self.desc, mdl.get_num_outputs(self.desc), mdl.get_output_size_by_index)
        if len(self.outputs[1]) != len(self.part.outputs):
            raise RuntimeError(f"{path} has {len(self.outputs[1])} outputs, the graph {len(self.part.outputs)}")
        owned.staging(max(size for _, size in self.outputs[1]))
        self.path = path

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
            self.owned.upload(name, self.inputs[1][at], raw)
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
        raw = self.owned.download(self.part.outputs[at].name, self.outputs[1][at][0], array.nbytes)
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(raw, np.uint8)
        return array

    def placement(self) -> Optional[contract.Placement]:
        if not self.path:
            return None
        said = f"offline model on {self.backend.soc}, which has no way back to the host; {self.backend.mode}"
        return contract.Placement(self.backend.soc.lower(), self.backend.precision, said)

    def close(self) -> None:
        self.path = ""
        try:
            self.owned.close()
        except RuntimeError as error:
            raise contract.refusal("run", [str(error)], REFUSALS) from error

    __del__ = close
