"""The bare side of overhead.py: ONNX Runtime alone, forced and free steps of a `unified` bundle, nothing compared."""

import json
import resource
import sys
from pathlib import Path

import numpy as np
import onnxruntime

bundle = Path(sys.argv[1])
manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
parts = manifest["graphs"][0]["parts"]
encoder, step = (onnxruntime.InferenceSession(str(bundle / parts[name]["file"])) for name in ("encoder", "step"))
step_inputs = [port.name for port in step.get_inputs()]
step_outputs = [port.name for port in step.get_outputs()]
arrays = {name: np.load(bundle / f"{name}.npy") for name in ("source_ids", "source_starts", "tokens", "token_starts")}
rules, dims = manifest["decode"], manifest["dims"]


def padded(name: str, starts: str, rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
    cut = [arrays[name][arrays[starts][row] : arrays[starts][row + 1]] for row in rows]
    ids = np.full((len(cut), max(map(len, cut))), rules["pad"], np.int64)
    mask = np.zeros_like(ids)
    for index, values in enumerate(cut):
        ids[index, : len(values)], mask[index, : len(values)] = values, 1
    return ids, mask


def decode(rows: list[int], forced: bool) -> None:
    ids, mask = padded("source_ids", "source_starts", rows)
    golden, _ = padded("tokens", "token_starts", rows)
    outputs = encoder.run(None, {"input_ids": ids, "attention_mask": mask})
    held = dict(zip([port.name for port in encoder.get_outputs()], outputs, strict=True))
    held = {name.replace("present", "past_key_values"): array for name, array in held.items()}
    held["encoder_attention_mask"] = mask
    held["encoder_hidden_states"] = held["last_hidden_state"]
    for name in step_inputs:
        if "decoder" in name:
            held[name] = np.zeros((len(rows), dims["heads"], 0, dims["head_dim"]), np.float32)
    fed = np.full(len(rows), rules["start"], np.int64)
    for k in range(golden.shape[1]):
        held["input_ids"] = fed[:, None]
        outputs = step.run(None, {name: held[name] for name in step_inputs})
        for name, array in zip(step_outputs, outputs, strict=True):
            held[name.replace("present", "past_key_values")] = array
        logits = held["logits"][:, -1]
        logits[:, rules["suppress"]] = -np.inf
        fed = golden[:, k] if forced else logits.argmax(axis=1)


for kind in ("forced", "free"):
    for rows in manifest["batches"][kind]:
        decode(rows, kind == "forced")
print(json.dumps({"peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
