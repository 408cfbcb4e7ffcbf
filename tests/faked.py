"""Adapters on the fakes of ``tests/fakes``: as they are, or with one line of their source replaced by a mistake."""

import gc
import os
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.core.rows import Row
from tests import helpers
from tests.saboteurs import frame

FAKES = Path(__file__).parent / "fakes"
NAMES = ("tensorrt", "cuda", "pycuda", "acl", "fake_device", "fake_settings", "fake_model")
USED = {"tensorrt": ("cuda", "cuda_memory", "logs", "tensorrt_engine"), "cann": ("ascend",)}
"""The helpers of an adapter, in which mistakes are planted too."""
CHECKS = ("encoder", "kv_shape", "kv_values", "placement")
"""Checks that need only the forced replay of two batches: about a second for a cell."""


@contextmanager
def fakes(hidden: tuple[str, ...] = (), **settings: Any) -> Iterator[types.ModuleType]:
    """The fakes importable, but for ``hidden``; gives fake_device. ``settings``: of fake_settings."""
    shown = {name: module for name, module in sys.modules.items() if name.split(".")[0] in NAMES}
    for name in shown:
        del sys.modules[name]
    sys.path.insert(0, str(FAKES))
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{FAKES / 'bin'}{os.pathsep}{path}"
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes an import fail
    try:
        import fake_device
        import fake_settings

        for name, value in settings.items():
            assert hasattr(fake_settings, name), name
            setattr(fake_settings, name, value)
        yield fake_device
    finally:
        os.environ["PATH"] = path
        sys.path.remove(str(FAKES))
        for name in [name for name in sys.modules if name.split(".")[0] in NAMES]:
            del sys.modules[name]
        sys.modules.update(shown)


def adapter(name: str, mistakes: Mapping[str, str] | None = None) -> types.ModuleType:
    """``backends/NAME.py`` and what it uses, each key of ``mistakes`` replaced by its value."""
    stems = (*USED.get(name, ()), name)
    sources = {stem: (helpers.ROOT / "backends" / f"{stem}.py").read_text(encoding="utf-8") for stem in stems}
    for right, wrong in (mistakes or {}).items():
        stem = next((stem for stem, source in sources.items() if right in source), None)
        assert stem is not None, f"no adapter has {right!r} any more: plant this mistake anew"
        sources[stem] = sources[stem].replace(right, wrong, 1)
    modules = {}
    for stem, source in sources.items():
        modules[stem] = types.ModuleType(f"mutated_{stem}")
        exec(compile(source, f"{stem}.py", "exec"), modules[stem].__dict__)
    for module in modules.values():
        for stem, helper in modules.items():
            if hasattr(module, stem):
                setattr(module, stem, helper)
    return modules[name]


def replay(
    device: types.ModuleType,
    module: types.ModuleType,
    provider: str | None = None,
    layout: str = "unified",
    checks: tuple[str, ...] = CHECKS,
    fail_at: int = 0,
) -> tuple[dict[str, Row], list[str]]:
    """The rows of one cell of the small bundle, and the misuses that the fake noticed."""
    device.reset().fail_at = fail_at
    backend = module.Backend(provider)
    rows = helpers.judge(backend, layout, checks=checks, of=frame.brief())
    del backend
    gc.collect()
    return rows, device.DEVICE.close()
