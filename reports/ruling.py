"""What a gate says: a verdict as data, as lines of a terminal, as Markdown for a CI step summary, and as JUnit XML."""

import re
from collections import Counter
from dataclasses import dataclass, field
from xml.etree import ElementTree

from reports.diff import escaped
from reports.policy import Waiver


@dataclass
class Reason:
    """Why a cell may not be shipped. ``what`` is a word of the policy; ``waiver`` lets it pass."""

    what: str
    check: str
    said: str
    command: str = ""
    waiver: Waiver | None = None


@dataclass
class Case:
    """One required cell on one box, or the pattern of one that is missing; or a rule that is of no cell. ``bundle``: where
    cells of several are required."""

    cell: str
    box: str
    reasons: list[Reason] = field(default_factory=list)
    bundle: str = ""

    @property
    def open(self) -> list[Reason]:
        return [reason for reason in self.reasons if reason.waiver is None]


@dataclass
class Verdict:
    """``cells``: a case for each required cell; ``rules``: for what is of no single cell; ``facts``: evidence, in lines."""

    policy: str
    results: str
    cells: list[Case] = field(default_factory=list)
    rules: list[Case] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not any(case.open for case in (*self.cells, *self.rules))


def lines(made: Verdict) -> list[str]:
    """The verdict for a terminal: a line first, then one for each reason, with the cell and the command to see it."""
    waived = [(case, reason) for case in made.cells for reason in case.reasons if reason.waiver]
    found = [(case, reason) for case in (*made.rules, *made.cells) for reason in case.open]
    good = sum(not case.reasons for case in made.cells)
    page = [
        f"{'PASS' if made.passed else 'FAIL'} policy {made.policy} on {made.results}: {len(made.cells)} required cells, "
        f"{good} good, {sum(bool(case.open) for case in made.cells)} bad, {len(found)} reasons, {len(waived)} waived"
    ]
    page += [f"FAIL {_line(case, reason)}" for case, reason in found]
    page += [
        f"waived until {reason.waiver.expires}: {_line(case, reason)} ({reason.waiver.reason})"
        for case, reason in waived
        if reason.waiver
    ]
    return page + [f"note: {fact}" for fact in made.facts]


def _line(case: Case, reason: Reason) -> str:
    where = (f" on {case.box}" if case.box not in ("", "*") else "") + _with(case)
    see = f" | {reason.command}" if reason.command else ""
    return f"{case.cell}{where}: {reason.what}: {' '.join(reason.said.split())}{see}"


def _with(case: Case) -> str:
    return f" with bundle {case.bundle}" if case.bundle else ""


def summary(made: Verdict) -> str:
    """Markdown for a CI step summary."""
    head, *rest = lines(made)
    page = [f"## {'✅' if made.passed else '❌'} Gate: {head}", ""]
    reasons = [(case, reason) for case in (*made.rules, *made.cells) for reason in case.reasons]
    if reasons:
        page += ["| cell | box | why | command |", "|---|---|---|---|"]
        for case, reason in reasons:
            waived = f" (waived until {reason.waiver.expires}: {reason.waiver.reason})" if reason.waiver else ""
            said = f"{reason.what}: {reason.said}{waived}"
            code = f"`{_cell_text(reason.command)}`" if reason.command else ""
            where = escaped(", ".join(filter(None, (case.box, case.bundle))))
            page.append(f"| `{_cell_text(case.cell)}` | {where} | {escaped(said)} | {code} |")
        page.append("")
    page += [f"- {escaped(line.removeprefix('note: '))}" for line in rest if line.startswith("note: ")]
    return "\n".join(page) + "\n"


def _cell_text(text: str) -> str:
    return text.replace("`", "'").replace("|", "\\|")


def junit(made: Verdict) -> str:
    """JUnit XML: a test for each required cell, and one for each rule that is of no cell and was broken."""
    suite = ElementTree.Element("testsuite", name=f"conform gate {made.policy}")
    counts = Counter({"tests": 0, "failures": 0, "errors": 0, "skipped": 0})
    for case in (*made.cells, *made.rules):
        counts["tests"] += 1
        test = ElementTree.SubElement(
            suite, "testcase", classname=_xml(case.box or "policy"), name=_xml(case.cell + _with(case))
        )
        if case.open:
            counts["failures"] += 1
            said = "\n".join(_line(case, reason) for reason in case.open)
            message = "; ".join(f"{reason.what}: {reason.said}" for reason in case.open)
            ElementTree.SubElement(test, "failure", message=_xml(message), type=case.open[0].what).text = _xml(said)
        elif case.reasons:
            counts["skipped"] += 1
            waivers = dict.fromkeys(
                f"{reason.what}, waived until {reason.waiver.expires}: {reason.waiver.reason}"
                for reason in case.reasons
                if reason.waiver
            )
            ElementTree.SubElement(test, "skipped", message=_xml("; ".join(waivers)))
    suite.attrib.update({name: str(count) for name, count in counts.items()})
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    """Without the characters that XML 1.0 has no way to write."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
