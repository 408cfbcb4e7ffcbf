"""Real runtimes with a live fault: not mutants, but what is installed here."""

from backends import openvino
from tests.saboteurs.frame import Saboteur

SABOTEURS: list[Saboteur] = [
    Saboteur(
        # Wrong once the cache fills a vector register: 8 entries with AVX2, 16 with AVX-512.
        "openvino-growing-cache",
        42,
        openvino.Backend,
        {"logits": (7, 15)},
        passes=("encoder", "kv_shape"),
        knob="CPU_RUNTIME_CACHE_CAPACITY=0",
    )
]
