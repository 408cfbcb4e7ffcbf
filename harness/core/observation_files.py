"""Observations on disk, as docs/observations.md specifies them: written by a worker or a program of any language, read by
the judge on any box."""

import hashlib
import json
import os
from dataclasses import asdict
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from backends.contract import Probe
from harness.core import observations, roles, safetensors
from harness.core.batch import Batch, split_rows
from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.core.files import write_whole
from harness.core.graph import Graph
from harness.core.rows import EXECUTIONS, Answer, answer_from, to_json
from harness.core.verdict import FORCED, NUMERIC

FORMAT, SCHEMA, NOTE = "seq2seq-conformance-observations", 1, "observations.json"
EXTRAS = ("first", "last", "next", "whole")
"""Fields of an `Output` of an own cache, beside its value."""


class Keeper:
    """Writes the observations of one cell into a folder; ``finish`` makes it readable."""

    def __init__(
        self, folder: str, bundle: Bundle, graph: Graph, probe: Probe, checks: Sequence[str], backend: str = ""
    ) -> None:
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self._file: Optional[safetensors.TensorWriter] = None
        self._name = ""
        self._base: Dict[Tuple[int, int], bytes] = {}  # digest of the base's logits of each step and row
        self._note: Dict[str, Any] = {
            "format": FORMAT,
            "schema": SCHEMA,
            "bundle": bundle.hash,
            "bundle_name": bundle.name,
            "graph": graph.id,
            "backend": backend,
            **asdict(probe),
            "producer": "harness.replay",
            "checks": list(checks),
            "outputs": {},
            "overwritten": [],
            "stopped": [],
            "ways": [],
            "placement": [],
            "cost": None,
            "answers": [],
        }
        self._note.update(_earlier(folder, self._note))

    def take(self, observation: observations.Observation) -> None:
        if isinstance(observation, observations.Encoded):
            self._open(f"{observation.phase}-{observation.batch}")
            self._outputs("", observation.outputs)
            for role, array in observation.fill.items():
                self._add(f"fill.{role}", array)
        elif isinstance(observation, observations.Stepped):
            self._open(f"{observation.phase}-{observation.batch}")
            self._outputs(f"step.{observation.step}.", observation.outputs)
            where = [observation.phase, observation.batch, observation.step]
            self._note["overwritten"] += [[*where, role, given] for role, given in observation.overwritten]
        elif isinstance(observation, (observations.Decoded, observations.Aligned)):
            self._open(f"free-{observation.batch}")
            prefix = "aligned." if isinstance(observation, observations.Aligned) else ""
            for name, array in vars(observation).items():
                if name != "batch":
                    self._add(prefix + name, array)
        elif isinstance(observation, observations.WayStep):
            self._open("ways")
            self._way(observation)
        elif isinstance(observation, observations.Placed):
            self._note["placement"].append(asdict(observation))
        elif isinstance(observation, observations.Stopped):
            self._note["stopped"].append(asdict(observation))
        elif isinstance(observation, observations.Measured):
            self._note["cost"] = asdict(observation)

    def _open(self, name: str) -> None:
        if name != self._name:
            self._close()
            self._name, self._file = name, safetensors.TensorWriter(os.path.join(self.folder, f"{name}.safetensors"))

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._name, self._file = "", None

    def _add(self, name: str, array: np.ndarray) -> None:
        assert self._file is not None
        self._file.add(name, array)

    def _outputs(self, prefix: str, outputs: observations.Outputs) -> None:
        for role, output in outputs.items():
            name = prefix + ("encoder" if role == roles.HIDDEN else role)
            if output.value is None or output.value.dtype not in safetensors.CODES:
                self._note["outputs"][f"{self._name}/{name}"] = [output.dtype, list(output.shape)]
                continue
            self._add(name, output.value)
            if output.value.shape != output.shape:
                self._add(f"{name}.shape", np.array(output.shape, np.int64))
            for extra in EXTRAS:
                array = getattr(output, extra)
                if array is not None:
                    self._add(f"{name}.{extra}", array)

    def _way(self, step: observations.WayStep) -> None:
        """Logits that are the base's, bit for bit, are not written again."""
        ways: List[Dict[str, Any]] = self._note["ways"]
        if not ways or (ways[-1]["name"], tuple(ways[-1]["rows"])) != (step.way, step.rows):
            ways.append({"name": step.way, "rows": list(step.rows), "steps": 0, "as_base": []})
        ways[-1]["steps"] = step.step + 1
        digests = [hashlib.sha256(np.ascontiguousarray(row).tobytes()).digest() for row in step.logits]
        if len(ways) == 1:
            self._base.update({(step.step, row): digest for row, digest in zip(step.rows, digests)})
        elif all(self._base.get((step.step, row)) == digest for row, digest in zip(step.rows, digests)):
            ways[-1]["as_base"].append(step.step)
            return
        self._add(f"{len(ways) - 1}.step.{step.step}", step.logits)

    def refused(self, answers: Sequence[Answer]) -> None:
        """Keep answers that rest on no observation: refusals, and what was built and not run."""
        self._note["answers"] += [json.loads(to_json(answer)) for answer in answers]

    def finish(self) -> None:
        self._close()
        names = sorted(name for name in os.listdir(self.folder) if name.endswith(".safetensors"))
        self._note["files"] = {name: os.path.getsize(os.path.join(self.folder, name)) for name in names}
        write_whole(os.path.join(self.folder, NOTE), json.dumps(self._note, ensure_ascii=False, indent=1))


def _earlier(folder: str, note: Mapping[str, Any]) -> Dict[str, Any]:
    """What other checks of the same cell have left in the folder: costs are measured on their own, after all else."""
    try:
        with open(os.path.join(folder, NOTE), encoding="utf-8") as stream:
            earlier: Dict[str, Any] = json.load(stream)
    except (OSError, ValueError):
        return {}
    same = all(earlier[name] == note[name] for name in ("schema", "bundle", "graph", "backend", "version", "device"))
    if not same or set(earlier["checks"]) & set(note["checks"]):
        return {}
    return {**earlier, "checks": [*earlier["checks"], *note["checks"]]}


def _text(note: Mapping[str, Any], name: str) -> str:
    if not isinstance(note[name], str):
        raise TypeError(f"{name} is {note[name]!r}, not text")
    return str(note[name])


def _word(note: Mapping[str, Any], name: str) -> str:
    """A part of a cell's name."""
    word = _text(note, name)
    if not word or "/" in word or (name == "execution" and word not in EXECUTIONS):
        raise ValueError(f"{name} is {word!r}")
    return word


class Kept:
    """A folder of observations, opened. Raises UserError for one that is damaged, partial, foreign or newer."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        try:
            with open(os.path.join(folder, NOTE), encoding="utf-8") as stream:
                self.note: Dict[str, Any] = json.load(stream)
        except FileNotFoundError:
            raise self._error(
                f"no {NOTE}: the replay was not finished", "replay it again with --keep-outputs"
            ) from None
        except (OSError, ValueError) as error:
            raise self._error(f"{NOTE} is damaged ({error})") from error
        if not isinstance(self.note, dict) or self.note.get("format") != FORMAT:
            raise self._error(f"{NOTE} is not one of observations", "give a folder that --keep-outputs wrote")
        if self.note.get("schema") != SCHEMA:
            message = f"schema {self.note.get('schema')!r}, this checkout reads schema {SCHEMA}"
            raise self._error(message, "update the checkout")
        try:
            words = {
                name: _word(self.note, name) for name in ("backend", "version", "device", "precision", "execution")
            }
            self.backend = words.pop("backend")
            self.probe = Probe(**words)
            self.graph, self.bundle, self.bundle_name = (
                _text(self.note, name) for name in ("graph", "bundle", "bundle_name")
            )
            self.checks = [check for check in NUMERIC if check in self.note["checks"]]
            if not self.checks or len(self.checks) != len(self.note["checks"]):
                raise ValueError(f"checks {self.note['checks']!r} are not some of {', '.join(NUMERIC)}")
            self.answers = [answer_from(dict(values)) for values in self.note.get("answers", ())]
            self.bytes = sum(self._check_file(name, size) for name, size in self.note["files"].items())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self.damaged(error) from error

    def _check_file(self, name: str, size: int) -> int:
        path = os.path.join(self.folder, name)
        if os.path.basename(name) != name or os.path.islink(path):
            raise self._error(f"{name!r} is not a plain file of this folder", "do not trust it")
        if not os.path.isfile(path) or os.path.getsize(path) != size:
            has = os.path.getsize(path) if os.path.isfile(path) else "no"
            raise self._error(f"partial: {name} has {has} bytes, {NOTE} says {size}")
        return size

    def _error(self, what: str, remedy: str = "copy the folder again, or replay it again") -> UserError:
        return UserError(f"observations {self.folder}: {what}; {remedy}")

    def damaged(self, error: Exception) -> UserError:
        """What is raised where the observations make no sense."""
        return self._error(f"damaged: {error!r} while reading what docs/observations.md asks for")

    def read(self, bundle: Bundle, graph: Graph) -> Iterator[observations.Observation]:
        """Everything observed, in the order of a replay. Raises UserError where something is missing or has no sense."""
        try:
            if set(self.checks) & {*FORCED, "tokens", "invariance"}:
                yield from self._phase(observations.FORCED, bundle, graph)
                yield from self._phase(observations.THOROUGH, bundle, graph)
                yield observations.Finished(observations.FORCED)
            yield from self._free(split_rows(bundle.batches("free"), graph.rows), bundle.array("top_ids").shape[1])
            if "placement" in self.checks:
                yield from self._placement(graph)
                yield observations.Finished(observations.PLACEMENT)
            yield from self._ways()
            yield from self._cost()
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OSError) as error:
            raise self.damaged(error) from error

    def _placement(self, graph: Graph) -> Iterator[observations.Placed]:
        placed = [observations.Placed(**entry) for entry in self.note["placement"]]
        if {part.part for part in placed} != {part.name for part in graph.parts} or len(placed) != len(graph.parts):
            raise ValueError(f"placement is not of the parts {', '.join(part.name for part in graph.parts)}")
        if not all(isinstance(word, str) for part in placed for word in vars(part).values()):
            raise TypeError("placement holds what is no text")
        yield from placed

    def _tensors(self, name: str) -> Dict[str, np.ndarray]:
        file = f"{name}.safetensors"
        return safetensors.read(os.path.join(self.folder, file)) if file in self.note["files"] else {}

    def _stopped(self, phase: str, batch: int) -> Iterator[observations.Stopped]:
        for entry in self.note["stopped"]:
            if (entry["phase"], entry["batch"]) == (phase, batch):
                yield observations.Stopped(**entry)

    def _phase(self, phase: str, bundle: Bundle, graph: Graph) -> Iterator[observations.Observation]:
        overwritten: Dict[Tuple[int, int], List[Tuple[str, int]]] = {}
        for where, batch, step, role, given in self.note["overwritten"]:
            if where == phase:
                overwritten.setdefault((batch, step), []).append((role, given))
        for number, batch in enumerate(bundle.batches("forced")):
            reader = _BatchReader(self._tensors(f"{phase}-{number}"), self._odd(f"{phase}-{number}"), batch, graph)
            stops = list(self._stopped(phase, number))
            if reader.empty and not stops:
                if phase == observations.THOROUGH:
                    continue
                raise KeyError(f"{phase}-{number}.safetensors")
            if not reader.empty:
                yield reader.encoded(number, phase)
                for step in range(stops[0].step if stops else max(batch.steps)):
                    changed = tuple(overwritten.get((number, step), ()))
                    yield reader.stepped(number, step, changed, phase)
            yield from stops

    def _odd(self, name: str) -> Dict[str, Tuple[str, Tuple[int, ...]]]:
        """Outputs of that file of which there are no values: dtype and shape."""
        entries = self.note["outputs"].items()
        return {
            key.partition("/")[2]: (str(dtype), tuple(int(size) for size in shape))
            for key, (dtype, shape) in entries
            if key.startswith(f"{name}/")
        }

    def _free(self, batches: Sequence[Batch], top: int) -> Iterator[observations.Observation]:
        if not set(self.checks) & {"logits", "tokens"}:
            return
        for number, batch in enumerate(batches):
            tensors, stops = self._tensors(f"free-{number}"), list(self._stopped(observations.FREE, number))
            if "tokens" in self.checks and "ids" not in tensors and not stops:
                raise KeyError(f"free-{number}.safetensors")
            if "ids" in tensors:
                rows = len(batch.rows)
                best = (rows, max(batch.steps), top)
                of_rows = all(len(array) == rows for array in tensors.values())
                alike = tensors["ids"].shape == tensors["largest"].shape and tensors["ids"].ndim == 2
                if not of_rows or not alike or tensors["best"].shape != best or tensors["lengths"].shape != (rows,):
                    raise ValueError(f"free-{number} is not of {rows} rows and the golden's best ids {list(best)}")
                if tensors.get("aligned.best", tensors["best"]).shape != best:
                    raise ValueError(f"aligned.best of free-{number} is not {list(best)}")
                yield observations.Decoded(number, *(tensors[name] for name in ("ids", "lengths", "largest", "best")))
            if "aligned.choices" in tensors:
                yield observations.Aligned(number, tensors["aligned.choices"], tensors["aligned.best"])
            yield from stops
        yield observations.Finished(observations.FREE)

    def _ways(self) -> Iterator[observations.Observation]:
        if "invariance" not in self.checks:
            return
        tensors = self._tensors("ways")
        for index, way in enumerate(self.note["ways"]):
            as_base: Set[int] = set(way["as_base"])
            rows = tuple(int(row) for row in way["rows"])
            for step in range(int(way["steps"])):
                logits = tensors[f"0.step.{step}"][list(rows)] if step in as_base else tensors[f"{index}.step.{step}"]
                yield observations.WayStep(str(way["name"]), rows, step, logits)
        yield from (
            observations.Stopped(**entry) for entry in self.note["stopped"] if entry["phase"] == observations.WAYS
        )
        yield observations.Finished(observations.WAYS)

    def _cost(self) -> Iterator[observations.Observation]:
        if "cost" not in self.checks:
            return
        yield from self._stopped(observations.COST, 0)
        cost = self.note["cost"]
        if cost is not None:
            listed = {name: tuple(cost[name]) for name in ("steps", "memory", "cpu")}
            yield observations.Measured(**{**cost, **listed})
        yield observations.Finished(observations.COST)


class _BatchReader:
    """The tensors of one forced batch as observations."""

    def __init__(
        self,
        tensors: Dict[str, np.ndarray],
        odd: Dict[str, Tuple[str, Tuple[int, ...]]],
        batch: Batch,
        graph: Graph,
    ) -> None:
        self.tensors, self.odd, self.batch, self.graph = tensors, odd, batch, graph
        self.empty = not tensors and not odd
        self._names: Dict[str, List[str]] = {}
        for name in (*tensors, *odd):
            step, rest = "", name
            if name.startswith("step."):
                _, step, rest = name.split(".", 2)
            if rest.rpartition(".")[2] not in (*EXTRAS, "shape") and not rest.startswith("fill."):
                self._names.setdefault(step, []).append(rest)

    def _part(self, name: str) -> str:
        return self.graph.part(name, self.batch.ids.shape[1]).name

    def encoded(self, number: int, phase: str) -> observations.Encoded:
        fill = {name[5:]: array for name, array in self.tensors.items() if name.startswith("fill.")}
        if any(array.ndim != 4 for array in fill.values()):
            raise ValueError("a fill has no rank of 4")
        return observations.Encoded(number, self._part("encoder"), self._outputs("", ""), fill, phase)

    def stepped(
        self, number: int, step: int, overwritten: Tuple[Tuple[str, int], ...], phase: str
    ) -> observations.Stepped:
        part = self._part("first" if self.graph.layout == "split" and step == 0 else "step")
        outputs = self._outputs(str(step), f"step.{step}.")
        return observations.Stepped(number, step, part, outputs, overwritten, phase)

    def _outputs(self, step: str, prefix: str) -> Dict[str, observations.Output]:
        if step not in self._names:
            raise KeyError(f"nothing of step {step or '(encoder)'}")
        by_role = {roles.HIDDEN if name == "encoder" else name: name for name in self._names[step]}
        return {role: self._output(role, prefix + name) for role, name in by_role.items()}

    def _output(self, role: str, name: str) -> observations.Output:
        if name in self.odd:
            return observations.Output(*self.odd[name])
        value = self.tensors[name]
        shape = self.tensors.get(f"{name}.shape")
        if shape is not None:
            whole_shape = tuple(int(size) for size in shape)
        elif role == roles.LOGITS:
            whole_shape = (self.graph.rows or len(self.batch.rows), 1, *value.shape[1:])
        elif roles.is_own(role):
            raise KeyError(f"{name}.shape")
        else:
            whole_shape = value.shape
        extras = {extra: self.tensors.get(f"{name}.{extra}") for extra in EXTRAS}
        own = roles.is_own(role)
        rank = 2 if role == roles.LOGITS else 3 if own or role == roles.HIDDEN else 4
        if value.ndim != rank or not len(value) <= len(self.batch.rows) + self.graph.rows:
            raise ValueError(f"{name} has shape {list(value.shape)}, which has no rank of {rank}")
        for extra, array in extras.items():
            of_entry = array is None or array.shape[:2] + array.shape[2 + (extra == "whole") :] == value.shape
            if not of_entry or (array is not None and not own):
                raise ValueError(f"{name}.{extra} does not go with {name}, which has shape {list(value.shape)}")
        return observations.Output(value.dtype.name, whole_shape, value, **extras)
