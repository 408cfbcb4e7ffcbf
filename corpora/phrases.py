"""Words and phrases of shop-floor inspection, English beside Chinese; `corpora.grammar` makes sentences of them."""

import random
from typing import NamedTuple

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


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _plural(noun: str) -> str:
    if noun.endswith("y"):
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith("h") else "s")


class Phrases:
    """Draws the phrases and plain clauses that sentences are made of. They have no capital and no full stop."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    # Phrases

    def place(self) -> Place:
        en, name, particle = self.rng.choice(PLACES)
        number = self.rng.randint(1, 12)
        name = name.format(number)
        return Place(en.format(number), f"在{name}{particle}", name)

    def part(self) -> Pair:
        part = Pair(*self.rng.choice(PARTS))
        if self.rng.random() < 0.45:
            adjective = Pair(*self.rng.choice(ADJECTIVES))
            return Pair(f"{adjective.en} {part.en}", adjective.zh + part.zh)
        return part

    def object(self) -> Pair:
        part = self.part()
        kind = self.rng.random()
        if kind < 0.2:
            number = self.rng.randint(1, 99)
            return Pair(f"{part.en} number {number}", f"{number}号{part.zh}")
        if kind < 0.35:
            place = self.place()
            return Pair(f"the {part.en} {place.en}", f"{place.zh_name}的{part.zh}")
        if kind < 0.45:
            whole = Pair(*self.rng.choice(PARTS))
            return Pair(f"the {part.en} of the {whole.en}", f"{whole.zh}的{part.zh}")
        return Pair(f"the {part.en}", part.zh)

    def time(self) -> Pair:
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

    def number(self) -> str:
        if self.rng.random() < 0.5:
            return str(self.rng.randint(1, 999))
        return f"{self.rng.randint(0, 99)}.{self.rng.randint(0, 99):02d}"

    def action(self) -> Pair:
        """A verb with its object, such as "check the bolt"."""
        verb, _, zh = self.rng.choice(VERBS)
        target = self.object()
        return Pair(f"{verb} {target.en}", zh + target.zh)

    # Clauses

    def past(self) -> Pair:
        who = Pair(*self.rng.choice(PEOPLE))
        _, did, zh = self.rng.choice(VERBS)
        target = self.object()
        kind = self.rng.random()
        if kind < 0.4:
            time = self.time()
            return Pair(f"{who.en} {did} {target.en} {time.en}", f"{who.zh}{time.zh}{zh}了{target.zh}")
        if kind < 0.7:
            place = self.place()
            return Pair(f"{who.en} {did} {target.en} {place.en}", f"{who.zh}{place.zh_adverbial}{zh}了{target.zh}")
        return Pair(f"{who.en} {did} {target.en}", f"{who.zh}{zh}了{target.zh}")

    def finding(self) -> Pair:
        defect = Pair(*self.rng.choice(DEFECTS))
        target = self.object()
        if self.rng.random() < 0.5:
            who = Pair(*self.rng.choice(PEOPLE))
            return Pair(
                f"{who.en} found {_article(defect.en)} on {target.en}",
                f"{who.zh}在{target.zh}上发现了{defect.zh}",
            )
        return Pair(f"there is {_article(defect.en)} on {target.en}", f"{target.zh}上有{defect.zh}")

    def measurement(self) -> Pair:
        quantity, quantity_zh, unit, unit_zh = self.rng.choice(QUANTITIES)
        target = self.object()
        en, zh = f"the {quantity} of {target.en}", f"{target.zh}的{quantity_zh}"
        value = self.number()
        kind = self.rng.random()
        if kind < 0.4:
            return Pair(f"{en} is {value} {unit}", f"{zh}是{value}{unit_zh}")
        if kind < 0.6:
            return Pair(f"{en} must be less than {value} {unit}", f"{zh}必须小于{value}{unit_zh}")
        if kind < 0.8:
            return Pair(f"{en} must not exceed {value} {unit}", f"{zh}不得超过{value}{unit_zh}")
        after = self.number()
        return Pair(f"{en} changed from {value} to {after} {unit}", f"{zh}从{value}变为{after}{unit_zh}")

    def state(self) -> Pair:
        target = self.object()
        state = Pair(*self.rng.choice(STATES))
        if self.rng.random() < 0.5:
            return Pair(f"{target.en} is {state.en}", target.zh + state.zh)
        time = self.time()
        return Pair(f"{target.en} was {state.en} {time.en}", target.zh + time.zh + state.zh)

    def count(self) -> Pair:
        part = Pair(*self.rng.choice(PARTS))
        some, total = self.rng.randint(2, 99), self.rng.randint(100, 999)
        parts = _plural(part.en)
        kind = self.rng.randint(0, 2)
        if kind == 0:
            return Pair(f"{some} of {total} {parts} failed the test", f"{total}个{part.zh}中有{some}个未通过测试")
        if kind == 1:
            return Pair(f"we received {total} {parts} from the supplier", f"我们从供应商收到了{total}个{part.zh}")
        return Pair(f"{some} percent of the {parts} are in the warehouse", f"百分之{some}的{part.zh}在仓库里")

    def command(self) -> Pair:
        action = self.action()
        kind = self.rng.random()
        if kind < 0.5:
            return Pair(action.en, f"请{action.zh}")
        if kind < 0.65:
            return Pair(f"do not {action.en}", f"不要{action.zh}")
        who = Pair(*self.rng.choice(PEOPLE))
        if kind < 0.8:
            return Pair(f"{who.en} must {action.en}", f"{who.zh}必须{action.zh}")
        verb, _, zh = self.rng.choice(VERBS)
        target = self.object()
        months = self.rng.randint(2, 12)
        return Pair(
            f"{who.en} should {verb} {target.en} every {months} months",
            f"{who.zh}应该每{months}个月{zh}一次{target.zh}",
        )

    def fact(self) -> Pair:
        return self.rng.choice((self.past, self.finding, self.measurement, self.state, self.count))()

    # Texts: from a label of one word to a paragraph
