"""What a gate says: a ruling as data, as lines of a terminal, as Markdown for a CI step summary, and as JUnit XML."""

import re
from collections import Counter
from dataclasses import dataclass, field
from xml.etree import ElementTree

from reports.markdown import code, escaped
from reports.policy import Waiver


@dataclass
class Reason:
    """Why a cell may not be shipped. ``what`` is a word of the policy; ``waiver`` lets it pass."""

    what: str
    check: str
    message: str
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
class Ruling:
    """``cells``: a case for each required cell; ``rules``: for what is of no single cell; ``facts``: evidence, in lines."""

    policy: str
    results: str
    cells: list[Case] = field(default_factory=list)
    rules: list[Case] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not any(case.open for case in (*self.cells, *self.rules))


def lines(ruling: Ruling) -> list[str]:
    """The ruling for a terminal: a line first, then one for each reason, with the cell and the command to see it."""
    waived = [(case, reason) for case in ruling.cells for reason in case.reasons if reason.waiver]
    against = [(case, reason) for case in (*ruling.rules, *ruling.cells) for reason in case.open]
    good = sum(not case.reasons for case in ruling.cells)
    bad = sum(bool(case.open) for case in ruling.cells)
    page = [
        f"{'PASS' if ruling.passed else 'FAIL'} policy {ruling.policy} on {ruling.results}: "
        f"{len(ruling.cells)} required cells, {good} good, {bad} bad, {len(against)} reasons, {len(waived)} waived"
    ]
    page += [f"FAIL {_line(case, reason)}" for case, reason in against]
    page += [
        f"waived until {reason.waiver.expires}: {_line(case, reason)} ({reason.waiver.reason})"
        for case, reason in waived
        if reason.waiver
    ]
    return page + [f"note: {fact}" for fact in ruling.facts]


def _line(case: Case, reason: Reason) -> str:
    where = (f" on {case.box}" if case.box not in ("", "*") else "") + _with(case)
    see = f" | {reason.command}" if reason.command else ""
    return f"{case.cell}{where}: {reason.what}: {' '.join(reason.message.split())}{see}"


def _with(case: Case) -> str:
    return f" with bundle {case.bundle}" if case.bundle else ""


def summary(ruling: Ruling) -> str:
    """Markdown for a CI step summary."""
    head, *rest = lines(ruling)
    page = [f"## {'✅' if ruling.passed else '❌'} Gate: {head}", ""]
    reasons = [(case, reason) for case in (*ruling.rules, *ruling.cells) for reason in case.reasons]
    if reasons:
        page += ["| cell | box | why | command |", "|---|---|---|---|"]
        for case, reason in reasons:
            waived = f" (waived until {reason.waiver.expires}: {reason.waiver.reason})" if reason.waiver else ""
            why = escaped(f"{reason.what}: {reason.message}{waived}")
            command = code(reason.command, in_table=True) if reason.command else ""
            where = escaped(", ".join(filter(None, (case.box, case.bundle))))
            page.append(f"| {code(case.cell, in_table=True)} | {where} | {why} | {command} |")
        page.append("")
    page += [f"- {escaped(line.removeprefix('note: '))}" for line in rest if line.startswith("note: ")]
    return "\n".join(page) + "\n"


def junit(ruling: Ruling) -> str:
    """JUnit XML: a test for each required cell, and one for each rule that is of no cell and was broken."""
    suite = ElementTree.Element("testsuite", name=f"conform gate {ruling.policy}")
    counts = Counter({"tests": 0, "failures": 0, "errors": 0, "skipped": 0})
    for case in (*ruling.cells, *ruling.rules):
        counts["tests"] += 1
        test = ElementTree.SubElement(
            suite, "testcase", classname=_xml(case.box or "policy"), name=_xml(case.cell + _with(case))
        )
        if case.open:
            counts["failures"] += 1
            text = "\n".join(_line(case, reason) for reason in case.open)
            message = "; ".join(f"{reason.what}: {reason.message}" for reason in case.open)
            ElementTree.SubElement(test, "failure", message=_xml(message), type=case.open[0].what).text = _xml(text)
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
