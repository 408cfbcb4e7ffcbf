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
    """Ids and mask of rows, int64[row, position], padded to the longest."""
    sequences = [arrays[name][arrays[starts][row] : arrays[starts][row + 1]] for row in rows]
    ids = np.full((len(sequences), max(map(len, sequences))), rules["pad"], np.int64)
    mask = np.zeros_like(ids)
    for index, values in enumerate(sequences):
        ids[index, : len(values)], mask[index, : len(values)] = values, 1
    return ids, mask


def decode(rows: list[int], forced: bool) -> None:
    """One batch: as many steps as the golden has, fed the golden's tokens or those that the model chose."""
    ids, mask = padded("source_ids", "source_starts", rows)
    golden, _ = padded("tokens", "token_starts", rows)
    outputs = encoder.run(None, {"input_ids": ids, "attention_mask": mask})
    feeds = dict(zip([port.name for port in encoder.get_outputs()], outputs, strict=True))
    feeds = {name.replace("present", "past_key_values"): array for name, array in feeds.items()}
    feeds["encoder_attention_mask"] = mask
    feeds["encoder_hidden_states"] = feeds["last_hidden_state"]
    for name in step_inputs:
        if "decoder" in name:
            feeds[name] = np.zeros((len(rows), dims["heads"], 0, dims["head_dim"]), np.float32)
    tokens = np.full(len(rows), rules["start"], np.int64)
    for k in range(golden.shape[1]):
        feeds["input_ids"] = tokens[:, None]
        outputs = step.run(None, {name: feeds[name] for name in step_inputs})
        for name, array in zip(step_outputs, outputs, strict=True):
            feeds[name.replace("present", "past_key_values")] = array
        logits = feeds["logits"][:, -1]
        logits[:, rules["suppress"]] = -np.inf
        tokens = golden[:, k] if forced else logits.argmax(axis=1)


for kind in ("forced", "free"):
    for rows in manifest["batches"][kind]:
        decode(rows, kind == "forced")
print(json.dumps({"peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
