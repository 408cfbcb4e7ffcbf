"""Seeded grammar of shop-floor inspection sentences: English with its Chinese translation.

The text is our own and is released under CC0-1.0. A seed gives the same sentences on every supported Python:
all draws go through `random.Random`, and no result depends on the order of a set.

`held_out(seed)` gives the test rows and `training(seed)` the training rows. No held-out sentence appears in
the training rows, neither as a row of its own nor inside a paragraph.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

DEFAULT_SEED = 20240607

PARTS = (
    ("bolt", "螺栓"),
    ("bearing", "轴承"),
    ("shaft", "轴"),
    ("gear", "齿轮"),
    ("valve", "阀门"),
    ("flange", "法兰"),
    ("gasket", "垫片"),
    ("spring", "弹簧"),
    ("housing", "外壳"),
    ("bracket", "支架"),
    ("pump", "泵"),
    ("motor", "电机"),
    ("sensor", "传感器"),
    ("cable", "电缆"),
    ("connector", "连接器"),
    ("circuit board", "电路板"),
    ("cover plate", "盖板"),
    ("cylinder", "气缸"),
    ("piston", "活塞"),
    ("coupling", "联轴器"),
    ("filter", "过滤器"),
    ("seal ring", "密封圈"),
    ("heat sink", "散热器"),
    ("control panel", "控制面板"),
    ("battery", "电池"),
    ("fan", "风扇"),
    ("nozzle", "喷嘴"),
    ("pipe", "管道"),
    ("wheel", "车轮"),
    ("belt", "皮带"),
)
ADJECTIVES = (
    ("new", "新的"),
    ("old", "旧的"),
    ("left", "左侧的"),
    ("right", "右侧的"),
    ("upper", "上部的"),
    ("lower", "下部的"),
    ("front", "前面的"),
    ("rear", "后面的"),
    ("spare", "备用的"),
    ("damaged", "损坏的"),
    ("main", "主要的"),
    ("small", "小的"),
    ("large", "大的"),
    ("steel", "钢制的"),
    ("aluminium", "铝制的"),
    ("plastic", "塑料的"),
    ("red", "红色的"),
    ("blue", "蓝色的"),
    ("green", "绿色的"),
)
DEFECTS = (
    ("crack", "裂纹"),
    ("scratch", "划痕"),
    ("burr", "毛刺"),
    ("dent", "凹痕"),
    ("leak", "泄漏"),
    ("rust spot", "锈点"),
    ("loose screw", "松动的螺丝"),
    ("paint defect", "油漆缺陷"),
    ("deformation", "变形"),
    ("oil stain", "油污"),
    ("air bubble", "气泡"),
    ("wrong label", "错误的标签"),
)
PEOPLE = (
    ("the operator", "操作员"),
    ("the inspector", "检验员"),
    ("the engineer", "工程师"),
    ("the supplier", "供应商"),
    ("the customer", "客户"),
    ("the technician", "技术员"),
    ("the supervisor", "主管"),
    ("the night shift", "夜班"),
    ("the maintenance team", "维修组"),
    ("the quality department", "质量部"),
)
# Quantity and unit, English and Chinese.
QUANTITIES = (
    ("length", "长度", "mm", "毫米"),
    ("width", "宽度", "mm", "毫米"),
    ("height", "高度", "mm", "毫米"),
    ("diameter", "直径", "mm", "毫米"),
    ("thickness", "厚度", "mm", "毫米"),
    ("weight", "重量", "kg", "千克"),
    ("temperature", "温度", "degrees", "度"),
    ("pressure", "压力", "bar", "巴"),
    ("torque", "扭矩", "Nm", "牛米"),
    ("voltage", "电压", "V", "伏"),
    ("current", "电流", "A", "安"),
    ("speed", "转速", "rpm", "转每分钟"),
)
# Infinitive, past tense, Chinese.
VERBS = (
    ("check", "checked", "检查"),
    ("replace", "replaced", "更换"),
    ("clean", "cleaned", "清洁"),
    ("install", "installed", "安装"),
    ("remove", "removed", "拆下"),
    ("measure", "measured", "测量"),
    ("repair", "repaired", "修理"),
    ("inspect", "inspected", "检验"),
    ("test", "tested", "测试"),
    ("tighten", "tightened", "拧紧"),
    ("mark", "marked", "标记"),
    ("order", "ordered", "订购"),
    ("lubricate", "lubricated", "润滑"),
    ("photograph", "photographed", "拍照记录"),
)
# English phrase, Chinese place name, and the particle that closes the Chinese adverbial 在…上 / 在…里.
PLACES = (
    ("on line {}", "{}号生产线", "上"),
    ("in the warehouse", "仓库", "里"),
    ("at station {}", "{}号工位", ""),
    ("in workshop {}", "{}号车间", ""),
    ("in the laboratory", "实验室", "里"),
    ("in cabinet {}", "{}号柜子", "里"),
)
STATES = (
    ("ready", "准备就绪"),
    ("blocked", "被堵住"),
    ("too hot", "过热"),
    ("worn", "磨损"),
    ("not installed", "未安装"),
    ("out of tolerance", "超出公差"),
    ("approved", "获得批准"),
    ("missing", "缺失"),
    ("broken", "坏了"),
    ("clean", "干净"),
    ("overloaded", "过载"),
    ("within the limits", "在限值之内"),
)
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS = (
    ("Monday", "星期一"),
    ("Tuesday", "星期二"),
    ("Wednesday", "星期三"),
    ("Thursday", "星期四"),
    ("Friday", "星期五"),
    ("Saturday", "星期六"),
    ("Sunday", "星期日"),
)
RECENT = (
    ("yesterday", "昨天"),
    ("this morning", "今天上午"),
    ("last week", "上周"),
    ("last month", "上个月"),
)


class Pair(NamedTuple):
    """An English text and its Chinese translation."""

    en: str
    zh: str


class Place(NamedTuple):
    """A place: the English phrase, the Chinese adverbial (在…) and the bare Chinese name for an attribute."""

    en: str
    zh_adverbial: str
    zh_name: str


class Row(NamedTuple):
    """One text of the grammar and the sentences that it was joined from."""

    text: Pair
    sentences: tuple[Pair, ...]


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _plural(noun: str) -> str:
    if noun.endswith("y"):
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith("h") else "s")


def _finish(clause: Pair) -> Pair:
    """Make a sentence of a clause: capital letter and full stop."""
    return Pair(f"{clause.en[0].upper()}{clause.en[1:]}.", f"{clause.zh}。")


class Grammar:
    """Draws sentences. Clauses have no capital and no full stop; sentences and paragraphs have both."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    # Phrases

    def _place(self) -> Place:
        en, name, particle = self.rng.choice(PLACES)
        number = self.rng.randint(1, 12)
        name = name.format(number)
        return Place(en.format(number), f"在{name}{particle}", name)

    def _part(self) -> Pair:
        part = Pair(*self.rng.choice(PARTS))
        if self.rng.random() < 0.45:
            adjective = Pair(*self.rng.choice(ADJECTIVES))
            return Pair(f"{adjective.en} {part.en}", adjective.zh + part.zh)
        return part

    def _object(self) -> Pair:
        part = self._part()
        kind = self.rng.random()
        if kind < 0.2:
            number = self.rng.randint(1, 99)
            return Pair(f"{part.en} number {number}", f"{number}号{part.zh}")
        if kind < 0.35:
            place = self._place()
            return Pair(f"the {part.en} {place.en}", f"{place.zh_name}的{part.zh}")
        if kind < 0.45:
            whole = Pair(*self.rng.choice(PARTS))
            return Pair(f"the {part.en} of the {whole.en}", f"{whole.zh}的{part.zh}")
        return Pair(f"the {part.en}", part.zh)

    def _time(self) -> Pair:
        kind = self.rng.randint(0, 6)
        if kind == 0:
            day, month = self.rng.randint(1, 28), self.rng.randint(1, 12)
            return Pair(f"on {MONTHS[month - 1]} {day}", f"{month}月{day}日")
        if kind == 1:
            weekday = Pair(*self.rng.choice(WEEKDAYS))
            return Pair(f"on {weekday.en}", weekday.zh)
        if kind == 2:
            hour, minute = self.rng.randint(6, 22), self.rng.choice((0, 15, 30, 45))
            return Pair(f"at {hour}:{minute:02d}", f"{hour}点{minute}分" if minute else f"{hour}点")
        if kind == 3:
            minutes = self.rng.randint(2, 90)
            return Pair(f"{minutes} minutes ago", f"{minutes}分钟前")
        if kind == 4:
            return Pair(*self.rng.choice(RECENT))
        if kind == 5:
            days = self.rng.randint(2, 30)
            return Pair(f"{days} days ago", f"{days}天前")
        year, month = self.rng.randint(2015, 2029), self.rng.randint(1, 12)
        return Pair(f"in {MONTHS[month - 1]} {year}", f"{year}年{month}月")

    def _number(self) -> str:
        if self.rng.random() < 0.5:
            return str(self.rng.randint(1, 999))
        return f"{self.rng.randint(0, 99)}.{self.rng.randint(0, 99):02d}"

    def _action(self) -> Pair:
        """A verb with its object, such as "check the bolt"."""
        verb, _, zh = self.rng.choice(VERBS)
        target = self._object()
        return Pair(f"{verb} {target.en}", zh + target.zh)

    # Clauses

    def _past(self) -> Pair:
        who = Pair(*self.rng.choice(PEOPLE))
        _, did, zh = self.rng.choice(VERBS)
        target = self._object()
        kind = self.rng.random()
        if kind < 0.4:
            time = self._time()
            return Pair(f"{who.en} {did} {target.en} {time.en}", f"{who.zh}{time.zh}{zh}了{target.zh}")
        if kind < 0.7:
            place = self._place()
            return Pair(f"{who.en} {did} {target.en} {place.en}", f"{who.zh}{place.zh_adverbial}{zh}了{target.zh}")
        return Pair(f"{who.en} {did} {target.en}", f"{who.zh}{zh}了{target.zh}")

    def _finding(self) -> Pair:
        defect = Pair(*self.rng.choice(DEFECTS))
        target = self._object()
        if self.rng.random() < 0.5:
            who = Pair(*self.rng.choice(PEOPLE))
            return Pair(
                f"{who.en} found {_article(defect.en)} on {target.en}",
                f"{who.zh}在{target.zh}上发现了{defect.zh}",
            )
        return Pair(f"there is {_article(defect.en)} on {target.en}", f"{target.zh}上有{defect.zh}")

    def _measurement(self) -> Pair:
        quantity, quantity_zh, unit, unit_zh = self.rng.choice(QUANTITIES)
        target = self._object()
        en, zh = f"the {quantity} of {target.en}", f"{target.zh}的{quantity_zh}"
        value = self._number()
        kind = self.rng.random()
        if kind < 0.4:
            return Pair(f"{en} is {value} {unit}", f"{zh}是{value}{unit_zh}")
        if kind < 0.6:
            return Pair(f"{en} must be less than {value} {unit}", f"{zh}必须小于{value}{unit_zh}")
        if kind < 0.8:
            return Pair(f"{en} must not exceed {value} {unit}", f"{zh}不得超过{value}{unit_zh}")
        after = self._number()
        return Pair(f"{en} changed from {value} to {after} {unit}", f"{zh}从{value}变为{after}{unit_zh}")

    def _state(self) -> Pair:
        target = self._object()
        state = Pair(*self.rng.choice(STATES))
        if self.rng.random() < 0.5:
            return Pair(f"{target.en} is {state.en}", target.zh + state.zh)
        time = self._time()
        return Pair(f"{target.en} was {state.en} {time.en}", target.zh + time.zh + state.zh)

    def _count(self) -> Pair:
        part = Pair(*self.rng.choice(PARTS))
        some, total = self.rng.randint(2, 99), self.rng.randint(100, 999)
        parts = _plural(part.en)
        kind = self.rng.randint(0, 2)
        if kind == 0:
            return Pair(f"{some} of {total} {parts} failed the test", f"{total}个{part.zh}中有{some}个未通过测试")
        if kind == 1:
            return Pair(f"we received {total} {parts} from the supplier", f"我们从供应商收到了{total}个{part.zh}")
        return Pair(f"{some} percent of the {parts} are in the warehouse", f"百分之{some}的{part.zh}在仓库里")

    def _command(self) -> Pair:
        action = self._action()
        kind = self.rng.random()
        if kind < 0.5:
            return Pair(action.en, f"请{action.zh}")
        if kind < 0.65:
            return Pair(f"do not {action.en}", f"不要{action.zh}")
        who = Pair(*self.rng.choice(PEOPLE))
        if kind < 0.8:
            return Pair(f"{who.en} must {action.en}", f"{who.zh}必须{action.zh}")
        verb, _, zh = self.rng.choice(VERBS)
        target = self._object()
        months = self.rng.randint(2, 12)
        return Pair(
            f"{who.en} should {verb} {target.en} every {months} months",
            f"{who.zh}应该每{months}个月{zh}一次{target.zh}",
        )

    def _fact(self) -> Pair:
        return self.rng.choice((self._past, self._finding, self._measurement, self._state, self._count))()

    # Texts: from a label of one word to a paragraph

    def label(self) -> Pair:
        """A short form of one to four words, such as "Bolt.", "Left gear." or "Torque 12 Nm."."""
        kind = self.rng.randint(0, 8)
        if kind == 0:
            return _finish(Pair(*self.rng.choice(PARTS)))
        if kind == 1:
            return _finish(Pair(*self.rng.choice(DEFECTS)))
        if kind == 2:
            return _finish(Pair(*self.rng.choice(STATES)))
        if kind == 3:
            quantity, quantity_zh, _, _ = self.rng.choice(QUANTITIES)
            return _finish(Pair(quantity, quantity_zh))
        if kind == 4:
            quantity, quantity_zh, unit, unit_zh = self.rng.choice(QUANTITIES)
            value = self._number()
            return _finish(Pair(f"{quantity} {value} {unit}", f"{quantity_zh}{value}{unit_zh}"))
        if kind == 5:
            part, number = self._part(), self.rng.randint(1, 99)
            return _finish(Pair(f"{part.en} number {number}", f"{number}号{part.zh}"))
        if kind == 6:
            part, defect = Pair(*self.rng.choice(PARTS)), Pair(*self.rng.choice(DEFECTS))
            return _finish(Pair(f"{defect.en} on {part.en}", f"{part.zh}上有{defect.zh}"))
        adjective, part = Pair(*self.rng.choice(ADJECTIVES)), Pair(*self.rng.choice(PARTS))
        return _finish(Pair(f"{adjective.en} {part.en}", adjective.zh + part.zh))

    def _single(self) -> Pair:
        if self.rng.randint(0, 5) == 0:
            return self._command()
        return self._fact()

    def _double(self) -> Pair:
        kind = self.rng.randint(0, 6)
        if kind == 0:
            condition = self.rng.choice((self._state, self._measurement, self._finding))()
            command = self._command()
            return Pair(f"if {condition.en}, {command.en}", f"如果{condition.zh}，{command.zh}")
        if kind == 1:
            result, cause = self._fact(), self._fact()
            return Pair(f"{result.en} because {cause.en}", f"因为{cause.zh}，所以{result.zh}")
        if kind == 2:
            first, second = self._fact(), self._fact()
            return Pair(f"{first.en}, but {second.en}", f"{first.zh}，但是{second.zh}")
        if kind == 3:
            command, later = self._command(), self._action()
            return Pair(f"{command.en} before you {later.en}", f"在{later.zh}之前，{command.zh}")
        if kind == 4:
            first, second = self._past(), self._fact()
            return Pair(f"after {first.en}, {second.en}", f"在{first.zh}之后，{second.zh}")
        if kind == 5:
            first, second = self._fact(), self._fact()
            return Pair(f"{first.en} and {second.en}", f"{first.zh}，而且{second.zh}")
        who, fact = Pair(*self.rng.choice(PEOPLE)), self._fact()
        return Pair(f"{who.en} reported that {fact.en}", f"{who.zh}报告说{fact.zh}")

    def one_clause(self) -> Pair:
        """A sentence of one clause."""
        return _finish(self._single())

    def two_clauses(self) -> Pair:
        """A sentence of two clauses, or of one clause that somebody reports."""
        return _finish(self._double())

    def three_clauses(self) -> Pair:
        """A sentence of three clauses, joined by a semicolon."""
        pair, single = self._double(), self._single()
        first, second = (pair, single) if self.rng.random() < 0.5 else (single, pair)
        return _finish(Pair(f"{first.en}; {second.en}", f"{first.zh}；{second.zh}"))

    def paragraph(self, length: int) -> Row:
        """A paragraph of `length` sentences."""
        sentences = tuple(
            self.rng.choice((self.one_clause, self.two_clauses, self.two_clauses))() for _ in range(length)
        )
        text = Pair(" ".join(s.en for s in sentences), "".join(s.zh for s in sentences))
        return Row(text, sentences)


# Kinds of row, in the order in which `held_out` gives them.
KINDS = ("label", "one clause", "two clauses", "three clauses", "paragraph")


def _as_row(draw: Callable[[], Pair]) -> Callable[[], Row]:
    def row() -> Row:
        pair = draw()
        return Row(pair, (pair,))

    return row


def _words(pair: Pair) -> int:
    return len(pair.en.split())


def _take(draw: Callable[[], Row], count: int, seen: set[str], least: int = 1, most: int = 999) -> list[Row]:
    """Draw `count` rows of `least` to `most` words that use no sentence in `seen`; adds their texts to it."""
    rows: list[Row] = []
    while len(rows) < count:
        row = draw()
        used = [row.text.en, *(sentence.en for sentence in row.sentences)]
        if least <= _words(row.text) <= most and not any(en in seen for en in used):
            seen.add(row.text.en)
            rows.append(row)
    return rows


def _held_out_rows(seed: int) -> dict[str, list[Row]]:
    grammar = Grammar(random.Random(f"held-out {seed}"))
    seen: set[str] = set()
    label = _as_row(grammar.label)
    rows = {
        "label": [
            *_take(label, 6, seen, 1, 1),
            *_take(label, 10, seen, 2, 2),
            *_take(label, 8, seen, 3, 4),
        ],
        "one clause": _take(_as_row(grammar.one_clause), 66, seen),
        "two clauses": _take(_as_row(grammar.two_clauses), 84, seen),
        "three clauses": _take(_as_row(grammar.three_clauses), 20, seen),
        "paragraph": [
            *_take(lambda: grammar.paragraph(3), 6, seen, 40, 60),
            *_take(lambda: grammar.paragraph(4), 8, seen, 55, 80),
            *_take(lambda: grammar.paragraph(5), 4, seen, 75, 89),
            *_take(lambda: grammar.paragraph(5), 4, seen, 92, 111),
        ],
    }
    assert tuple(rows) == KINDS
    return rows


def held_out_kinds(seed: int = DEFAULT_SEED) -> list[str]:
    """The kind (see `KINDS`) of each row of `held_out(seed)`."""
    return [kind for kind, rows in _held_out_rows(seed).items() for _ in rows]


def held_out(seed: int = DEFAULT_SEED) -> list[Pair]:
    """The test rows, from one word to a paragraph of over 90 words."""
    return [row.text for rows in _held_out_rows(seed).values() for row in rows]


def training(seed: int = DEFAULT_SEED) -> list[Pair]:
    """The training rows. None of them holds a sentence of `held_out(seed)`."""
    seen = {pair.en for rows in _held_out_rows(seed).values() for row in rows for pair in (row.text, *row.sentences)}
    grammar = Grammar(random.Random(f"training {seed}"))

    # The short forms are few, so they repeat; the other rows are all different.
    labels: list[Pair] = []
    while len(labels) < 3000:
        pair = grammar.label()
        if pair.en not in seen:
            labels.append(pair)
    rows = [
        *_take(_as_row(grammar.one_clause), 27000, seen),
        *_take(_as_row(grammar.two_clauses), 18000, seen),
        *_take(_as_row(grammar.three_clauses), 3000, seen),
        *_take(lambda: grammar.paragraph(grammar.rng.randint(2, 5)), 3500, seen),
    ]
    return labels + [row.text for row in rows]
