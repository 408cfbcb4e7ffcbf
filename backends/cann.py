"""Huawei Ascend through ATC and pyACL: each part is compiled to offline models (``.om``), which only the device can run.

``cann`` keeps the graph's float32 or is refused (``must_keep_origin_dtype``: ATC's own default is fp16); ``cann:fp16`` is
``force_fp16``, ``cann:mixed`` is ``allow_mix_precision``; ``cann:force_fp32`` multiplies matrices in fp16, whatever its
name says. Shapes are compiled in. The cache's length has up to 100 buckets ("gears"), one for each length, so nothing is
padded. A length of 0 is none of them, so ``unified`` is unsupported. Sources: hiascend.com, ATC and pyACL of CANN 7 to 9.
"""

import os
import shutil
import subprocess
import tempfile
from typing import Any, Dict, List, Optional, Tuple

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
        code = acl.init()  # without acl.finalize: a worker serves one backend, and its end releases the device
        if code != ascend.ALREADY_INITIALIZED:
            ascend.check(acl, "acl.init", code)
        count, code = acl.rt.get_device_count()
        if code or not count:
            raise contract.Absent(f"no Ascend device: {ascend.named(code)}", DRIVER)
        ascend.check(acl, "acl.rt.set_device", acl.rt.set_device(0))
        self.soc = acl.get_soc_name()
        self.models: Dict[Tuple[str, ...], str] = {}
        self.folder = tempfile.TemporaryDirectory(prefix="cann-")
        version, execution = contract.version_of(acl, ascend.toolkit()), contract.execution_of(acl)
        return contract.Probe(version, self.soc.lower(), self.precision, execution)

    def compile(self, part: contract.Part, options: Dict[str, Any]) -> contract.Program:
        self.offline(part, SMALL)  # what ATC refuses is refused now, and not in the middle of a decode
        return _Program(self, part)

    def offline(self, part: contract.Part, sizes: Dict[str, int]) -> str:
        """Path of the part's offline model for these sizes, compiled if there is none yet. Raises StageError."""
        arguments = _shape_arguments(part, sizes)
        key = (part.path, *arguments)
        if key not in self.models:
            path = os.path.join(self.folder.name, f"{part.name}-{len(self.models)}")
            command = ["atc", "--framework=5", f"--model={part.path}", f"--output={path}", f"--soc_version={self.soc}"]
            command += ["--input_format=ND", f"--precision_mode={self.mode}", "--log=error", *arguments]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder.name)
            if done.returncode or not os.path.exists(path + ".om"):
                output = done.stdout.decode("utf-8", "replace").strip()
                raise contract.refusal("build", [output or "atc wrote no model"], REFUSALS)
            self.models[key] = path + ".om"
        return self.models[key]


def _shape_arguments(part: contract.Part, sizes: Dict[str, int]) -> List[str]:
    """ATC's arguments for the inputs: fixed sizes, and the bucket of cache lengths that ``past`` belongs to."""
    fixed = {**sizes, "past": -1}
    shapes = [[fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in port.shape] for port in part.inputs]
    named = (f"{port.name}:{','.join(map(str, shape))}" for port, shape in zip(part.inputs, shapes))
    arguments = ["--input_shape=" + ";".join(named)]
    dynamic = sum(shape.count(-1) for shape in shapes)
    if dynamic:
        first = (sizes["past"] - 1) // GEARS * GEARS + 1
        gears = (",".join([str(past)] * dynamic) for past in range(first, first + GEARS))
        arguments.append("--dynamic_dims=" + ";".join(gears))
    return arguments


class _Program(contract.Program):
    """One part. The offline model of one size is loaded at a time, with its buffers."""

    def __init__(self, backend: Backend, part: contract.Part) -> None:
        self.backend, self.acl, self.part, self.path = backend, backend.acl, part, ""
        self.owned = ascend.Owned(self.acl)
        self.check = self.owned.check

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        sizes: Dict[str, int] = {}
        for port in self.part.inputs:
            sizes.update((dim, size) for dim, size in zip(port.shape, feeds[port.name].shape) if isinstance(dim, str))
        path = self.backend.offline(self.part, sizes)
        try:
            if path != self.path:
                self._load(path)
            self._feed(feeds)
            self.check("acl.mdl.execute", self.acl.mdl.execute(self.model, self.inputs[0], self.outputs[0]))
            return {port.name: self._fetch(index) for index, port in enumerate(self.part.outputs)}
        except RuntimeError as error:
            raise contract.refusal("run", [str(error)], REFUSALS) from error

    def _load(self, path: str) -> None:
        mdl, owned, self.path = self.acl.mdl, self.owned, ""
        owned.close()
        loaded = mdl.load_from_file(path)
        self.model = owned.checked("acl.mdl.load_from_file", loaded, "acl.mdl.unload", mdl.unload)
        self.desc = owned.own(mdl.create_desc(), "acl.mdl.destroy_desc", mdl.destroy_desc)
        self.check("acl.mdl.get_desc", mdl.get_desc(self.desc, self.model))
        self.inputs = owned.dataset(self.desc, mdl.get_num_inputs(self.desc), mdl.get_input_size_by_index)
        self.outputs = owned.dataset(self.desc, mdl.get_num_outputs(self.desc), mdl.get_output_size_by_index)
        if len(self.outputs[1]) != len(self.part.outputs):
            raise RuntimeError(f"{path} has {len(self.outputs[1])} outputs, the graph {len(self.part.outputs)}")
        owned.allocate_host(max(size for _, size in self.outputs[1]))
        self.path = path

    def _feed(self, feeds: Dict[str, np.ndarray]) -> None:
        acl, shapes = self.acl, {}
        for name, array in feeds.items():
            index, code = acl.mdl.get_input_index_by_name(self.desc, name)
            self.check(f"acl.mdl.get_input_index_by_name {name}", code)
            raw = np.ascontiguousarray(array, DTYPES[acl.mdl.get_input_data_type(self.desc, index)]).tobytes()
            self.owned.upload(name, self.inputs[1][index], raw)
            shapes[index] = array.shape
        index, code = acl.mdl.get_input_index_by_name(self.desc, "ascend_mbatch_shape_data")
        if not code:  # a model with buckets has this input, and must be given the sizes of all others
            sizes = [size for other in sorted(shapes) for size in shapes[other]]
            dims = {"name": "", "dimCount": len(sizes), "dims": sizes}
            code = acl.mdl.set_input_dynamic_dims(self.model, self.inputs[0], index, dims)
            self.check("acl.mdl.set_input_dynamic_dims", code)

    def _fetch(self, index: int) -> np.ndarray:
        """An output with the shape of this run: its buffer has the size of the largest bucket."""
        acl = self.acl
        dims, code = acl.mdl.get_cur_output_dims(self.desc, index)
        self.check("acl.mdl.get_cur_output_dims", code)
        array = np.empty(dims["dims"], DTYPES[acl.mdl.get_output_data_type(self.desc, index)])
        raw = self.owned.download(self.part.outputs[index].name, self.outputs[1][index][0], array.nbytes)
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(raw, np.uint8)
        return array

    def placement(self) -> Optional[contract.Placement]:
        if not self.path:
            return None
        evidence = f"offline model on {self.backend.soc}, which cannot fall back to the host; {self.backend.mode}"
        return contract.Placement(self.backend.soc.lower(), self.backend.precision, evidence)

    def close(self) -> None:
        self.path = ""
        try:
            self.owned.close()
        except RuntimeError as error:
            raise contract.refusal("run", [str(error)], REFUSALS) from error

    __del__ = close
