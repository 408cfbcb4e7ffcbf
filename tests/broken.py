"""The runtime of a broken night: honest ONNX Runtime whose logits are off from step 5 on, fluent and wrong."""

from tests.mutant import Feeds, Mutant


def _off(part: str, step: int, feeds: Feeds, outputs: Feeds) -> Feeds:
    if part == "step" and step >= 5:
        outputs["logits"] = outputs["logits"] + outputs["logits"] ** 2 * 0.01
    return outputs


class Off(Mutant):
    def __init__(self, provider: str | None = None) -> None:
        super().__init__(provider, outputs=_off)
