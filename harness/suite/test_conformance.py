"""Does this runtime decode like PyTorch? One test a cell and check; ``pytest --backend=NAME`` chooses the runtimes."""

from harness.campaign import Campaign, Question
from harness.plugin import conclude


def test_decodes_like_pytorch(campaign: Campaign, question: Question) -> None:
    conclude(campaign.ask(question))
