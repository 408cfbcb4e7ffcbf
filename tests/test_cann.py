"""The CANN adapter on named fakes of atc and pyACL: buckets, codes, absences, and planted mistakes."""

import os
from pathlib import Path

import pytest

from backends import cann as adapter
from backends import contract
from tests import faked
from tests.saboteurs import frame


def test_a_cell_passes_and_releases_everything() -> None:
    checks = ("encoder", "logits", "kv_shape", "kv_values", "tokens", "placement", "cost")
    with faked.fakes() as device:
        rows, faults = faked.replay(device, adapter, layout="split", checks=checks)
    assert not faults
    assert {check: row.status for check, row in rows.items()} == dict.fromkeys(checks, "PASS")
    assert "must_keep_origin_dtype" in rows["placement"].detail["step"]


def test_an_empty_cache_is_unsupported() -> None:
    with faked.fakes() as device:
        rows, faults = faked.replay(device, adapter, layout="unified")
    assert not faults
    assert {(row.status, row.kind) for row in rows.values()} == {("UNSUPPORTED", "shape")}


def test_a_model_is_compiled_once_for_a_hundred_cache_lengths() -> None:
    with faked.fakes() as device:
        device.reset()
        backend = adapter.Backend()
        backend.probe()
        sizes = [{"batch": 2, "source": 9, "past": past} for past in (1, 2, 100, 101, 200)]
        paths = [backend.offline(_part("step"), size) for size in sizes]
        assert paths[0] == paths[1] == paths[2] != paths[3] == paths[4]
        encoders = [backend.offline(_part("encoder"), {"batch": 2, "source": source}) for source in (9, 9, 10)]
        assert encoders[0] == encoders[1] != encoders[2]


MODES = [
    (None, "fp32", "must_keep_origin_dtype"),
    ("force_fp32", "fp16", "force_fp32"),
    ("fp16", "fp16", "force_fp16"),
    ("mixed", "fp16", "allow_mix_precision"),
]


@pytest.mark.parametrize("provider, precision, mode", MODES)
def test_the_precision_mode_is_in_the_cell(provider: str | None, precision: str, mode: str) -> None:
    with faked.fakes():
        backend = adapter.Backend(provider)
        probe = backend.probe()
        assert backend.mode == mode
    assert (probe.device, probe.precision) == ("ascend310p3", precision)
    assert probe.version.endswith("-fake")


FILES = [
    ("opp/version.info", "Version=8.0.RC1\n", "8.0.RC1"),
    ("version.cfg", "# a line\nrunning_version=[7.0.0.5.242:CANN-7.0]\n", "7.0.0.5.242"),
    ("readme", "nothing", "unknown"),
]


@pytest.mark.parametrize("name, text, version", FILES)
def test_the_version_is_the_toolkits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str, version: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(tmp_path))
    with faked.fakes():
        assert adapter.Backend().probe().version == f"{version}-fake"


ABSENCES = [
    ({"hidden": ("acl",)}, "", "pyACL cannot be imported"),
    ({}, "/nowhere", "atc, the model compiler, is not on PATH"),
    ({"ASCENDS": 0}, "", "no Ascend device"),
]


@pytest.mark.parametrize("settings, path, reason", ABSENCES, ids=["acl", "atc", "device"])
def test_absences_are_told_apart(monkeypatch: pytest.MonkeyPatch, settings: dict, path: str, reason: str) -> None:
    with faked.fakes(**settings):
        if path:
            monkeypatch.setenv("PATH", path)
        with pytest.raises(contract.Absent, match=reason) as caught:
            adapter.Backend().probe()
    assert caught.value.remedy


def test_what_atc_refuses_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ATC_UNKNOWN", "strange")
    with faked.fakes() as device:
        rows, faults = faked.replay(device, adapter, layout="split")
    assert not faults
    assert {(row.status, row.stage, row.kind) for row in rows.values()} == {("UNSUPPORTED", "build", "operator")}
    assert "No parser is registered for Op [strange" in rows["encoder"].message


@pytest.mark.parametrize("code, name", [(507011, "ACL_ERROR_RT_MODEL_EXECUTE (507011)"), (123456, "code 123456")])
def test_a_code_is_named(code: int, name: str) -> None:
    with faked.fakes(CODES={"mdl.execute": code}) as device:
        rows, faults = faked.replay(device, adapter, layout="split")
    assert not faults
    assert rows["encoder"].status == "FAIL"
    assert f"acl.mdl.execute: {name}: EE9999: the fake's message" in rows["encoder"].message


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failing_copy_is_reported_though_nothing_can_be_freed() -> None:
    """A lost device fails every call; the first error is the one to report."""
    codes = {"rt.memcpy 2": 507899, "rt.free_host": 507899, "rt.free": 507899}
    with faked.fakes(CODES=codes) as device:
        rows, _ = faked.replay(device, adapter, layout="split")
    assert rows["encoder"].status == "FAIL"
    assert "acl.rt.memcpy last_hidden_state: code 507899: EE9999" in rows["encoder"].message


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_resource_that_cannot_be_released_is_reported() -> None:
    with faked.fakes(CODES={"rt.free": 507899}) as device:
        rows, faults = faked.replay(device, adapter, layout="split")
    assert rows["encoder"].status == "FAIL"
    assert "acl.rt.free: code 507899" in rows["encoder"].message
    assert "blocks of device memory" in " ".join(faults)


@pytest.mark.parametrize("fail_at", [1, 2, 4, 5, 20])
def test_a_full_device_is_a_clear_failure_and_leaks_nothing(fail_at: int) -> None:
    with faked.fakes() as device:
        rows, faults = faked.replay(device, adapter, layout="split", fail_at=fail_at)
    assert not faults
    assert "ACL_ERROR_RT_MEMORY_ALLOCATION (207001)" in " ".join(row.message for row in rows.values())


MISTAKES = [
    (
        "the device is not chosen",
        '        ascend.check(acl, "acl.rt.set_device", acl.rt.set_device(0))\n',
        "",
        "set_device was not called",
    ),
    ("memory leaks", '"acl.rt.free", acl.rt.free)', '"acl.rt.free", lambda memory: 0)', "blocks of device memory"),
    (
        "data buffers leak",
        'self.own(data, "acl.destroy_data_buffer", acl.destroy_data_buffer)',
        "pass",
        "data buffer still points",
    ),
    (
        "datasets leak",
        'self.own(acl.mdl.create_dataset(), "acl.mdl.destroy_dataset", acl.mdl.destroy_dataset)',
        "acl.mdl.create_dataset()",
        "handles were never released",
    ),
    (
        "the description leaks",
        'owned.own(mdl.create_desc(), "acl.mdl.destroy_desc", mdl.destroy_desc)',
        "mdl.create_desc()",
        "description of this model",
    ),
    ("the model leaks", '"acl.mdl.unload", mdl.unload)', '"acl.mdl.unload", lambda model: 0)', "handles"),
    (
        "host memory leaks",
        '"acl.rt.free_host", self.acl.rt.free_host)',
        '"acl.rt.free_host", lambda memory: 0)',
        "blocks of device memory",
    ),
    ("host memory freed as the device's", "self.acl.rt.free_host)", "self.acl.rt.free)", "a stream still uses"),
    (
        "memory freed twice",
        "        return dataset, buffers",
        "            acl.rt.free(memory)\n        return dataset, buffers",
        "data buffer still points",
    ),
    (
        "the description is not filled",
        'self.check("acl.mdl.get_desc", mdl.get_desc(self.desc, self.model))',
        "pass",
        "get_desc was not called",
    ),
    ("int64 as int32", '9: "int64"', '9: "int32"', "were written"),
    ("the wrong direction", "len(raw), TO_DEVICE)", "len(raw), TO_HOST)", "memcpy"),
    (
        "more bytes than room",
        "memcpy(self.host, size, address, size, TO_HOST)",
        "memcpy(self.host, size, address, size + 8, TO_HOST)",
        "room for",
    ),
    (
        "the buckets' sizes are not set",
        "        if not code:  # a model",
        "        if False:  # a model",
        "set_input_dynamic_dims was not called",
    ),
    (
        "the sizes in another order",
        "for other in sorted(shapes)",
        "for other in sorted(shapes, reverse=True)",
        "INVALID_PARAM (100000)",
    ),
    (
        "the whole buffer is read",
        "dims, code = acl.mdl.get_cur_output_dims(self.desc, index)",
        'dims, code = {"dims": [self.outputs[1][index][1] // 4]}, 0',
        "has rank 1",
    ),
    (
        "codes are not looked at",
        "    if code:\n        raise RuntimeError",
        "    if False:\n        raise RuntimeError",
        "",
    ),
    ("unequal gears", "[str(past)] * dynamic", "[str(past)] * (dynamic + 1)", "E10042"),
    ("too many gears", "GEARS = 100", "GEARS = 101", "E10042"),
    ("no ND", '"--input_format=ND", ', "", "E10040"),
    (
        "the last bucket is skipped",
        '(sizes["past"] - 1) // GEARS * GEARS + 1',
        'sizes["past"] // GEARS * GEARS + 2',
        "INVALID_PARAM",
    ),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name, right, wrong, expected", MISTAKES, ids=[row[0] for row in MISTAKES])
def test_a_planted_mistake_is_caught(name: str, right: str, wrong: str, expected: str) -> None:
    module = faked.adapter("cann", {right: wrong})
    fail_at = 5 if "codes" in name else 0
    with faked.fakes() as device:
        try:
            rows, faults = faked.replay(device, module, layout="split", fail_at=fail_at)
        except device.Misuse as misuse:  # while it is probed, outside of any cell
            rows, faults = {}, [str(misuse)]
    messages = [
        *faults,
        *(f"{row.message} {row.detail.get('said', '')}" for row in rows.values() if row.status != "PASS"),
    ]
    assert messages, f"{name}: nothing was noticed"
    assert any(expected in message for message in messages), messages


def _part(name: str) -> contract.Part:
    graph = next(graph for graph in frame.brief().bundle.graphs if graph.id == "torchscript/split/fp32/op17")
    part = graph.part(name)
    assert os.path.isfile(part.path)
    return part
