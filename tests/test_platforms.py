"""The table of platforms: how far each was reached, by the newest rows of all boxes."""

from dataclasses import replace

import pytest

from harness.core.rows import Row
from reports import platforms


def _cell(
    device: str, runtime: str = "ort", cpu: tuple[str, ...] = (), status: str = "PASS", stage: str = "compare"
) -> Row:
    cell = f"{runtime}@1/{device}/torchscript/split/fp32/op17"
    return Row(
        "cost",
        status,
        stage,
        compared=1,
        backend=runtime,
        runtime=runtime,
        version="1",
        device=device,
        opset=17,
        cell=cell,
        box="a-box",
        time="2026-01-02T03:04:05Z",
        detail={"cpu": list(cpu)},
    )


PLATFORMS = [
    (_cell("cpu", cpu=("avx2",)), platforms.X86),
    (_cell("cpu", cpu=("asimd",)), platforms.ARM64),
    (_cell("nvidia-h200", "tensorrt"), platforms.GPU),
    (_cell("orin", "tensorrt"), platforms.JETSON),
    (_cell("cuda", "ort"), platforms.GPU),
    (_cell("no-gpu", "tensorrt_rtx"), platforms.GPU),
    (_cell("ascend310p3", "cann"), platforms.ASCEND),
    (_cell("vitisai", "ort"), platforms.FPGA),
    (_cell("cpu"), platforms.OTHER),
]


@pytest.mark.parametrize("row, platform", PLATFORMS, ids=[platform for _, platform in PLATFORMS])
def test_a_row_is_placed_on_its_platform(row: Row, platform: str) -> None:
    [line] = platforms.reached([row])
    assert (line.platform, line.depth, line.cells, line.boxes, line.last_run) == (
        platform,
        "ran",
        "1 ✅",
        "a-box",
        "2026-01-02",
    )


def test_a_simulator_has_a_line_of_its_own() -> None:
    lines = platforms.reached([_cell("rk3588", "rknn"), _cell("simulator-rk3588", "rknn")])
    assert [(line.platform, line.depth) for line in lines] == [
        (platforms.RK3588, "ran"),
        (platforms.RK3588, "simulated"),
    ]
    assert [line.cells for line in lines] == ["1 ✅", "1 🧪"]


def test_what_was_built_is_counted_beside_what_was_refused() -> None:
    row = _cell("no-gpu", "tensorrt_rtx")
    built = replace(row, status="ABSENT", stage="build", kind="built", compared=0)
    refused = replace(row, status="UNSUPPORTED", stage="parse", kind="opset", cell=f"{row.cell}9")
    (line,) = platforms.reached([built, refused])
    assert (line.depth, line.cells) == ("built", "1 🔨 1 🚫")


def test_platforms_that_nobody_ran_are_shown() -> None:
    rows = [_cell("cpu", cpu=("avx2",)), _cell("qnn-htp", "ort:qnn", ("asimd",), "UNSUPPORTED", "load")]
    lines = platforms.table(rows).splitlines()
    assert sum("⬜" in line for line in lines) == len(platforms.PLATFORMS) - 2
    assert any("ort:qnn@1" in line and "refused at load" in line and "1 🚫" in line for line in lines)
    assert max(map(len, lines)) <= 80
