"""Words of rows inside Markdown: a runtime's message must change nothing but its own place on the page."""

import re

SPECIAL = re.compile(
    r"[\\`*<|]"
    r"|\[(?=[^\[\]]*\]\()|\](?=\()"  # the brackets of a link; others do nothing
    r"|^\[(?=[^\]]*\]:)"  # that of a link's target
)


def escaped(text: str) -> str:
    """Text on one line, with nothing in it that Markdown would act on."""
    return SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))


def code(text: str, in_table: bool = False) -> str:
    """Text as a code span. In a table a bar would end the cell."""
    text = text.replace("`", "'")
    return f"`{text.replace('|', chr(92) + '|') if in_table else text}`"
