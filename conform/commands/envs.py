"""``conform envs``: the environments of other runtime versions."""

import argparse

from harness.core.errors import UserError
from harness.run import envs

HELP = "make, list and remove the environments of other runtime versions, which NAME@VERSION runs in"
EXAMPLE = "conform envs create ort@1.10 openvino@2022.3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["create", "list", "remove"])
    parser.add_argument(
        "names", nargs="*", help="NAME@VERSION, NAME@all or all, of backends/envs.toml (list: default all)"
    )


def run(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    if not options.names and options.action != "list":
        raise UserError(f"conform envs {options.action}: name what to {options.action}, e.g. ort@1.10, or all")
    entries = list(dict.fromkeys(entry for name in options.names or ["all"] for entry in envs.matching(name)))
    if options.action == "list":
        print(_table(entries))
        return 0
    failed = False
    for entry in tqdm(entries, options.action, unit="env", disable=len(entries) < 2 or None):
        if options.action == "remove":
            tqdm.write(f"{entry.name}: {'removed' if envs.remove(entry) else 'was not here'}")
            continue
        try:
            tqdm.write(envs.create(entry))
        except UserError as error:
            failed = True
            tqdm.write(f"{error}; it stays ABSENT")
    return int(failed)


def _table(entries: list[envs.Entry]) -> str:
    from tabulate import tabulate

    table = [
        [entry.name, entry.python, " ".join(entry.pins), f"{envs.size(entry) / 2**20:.0f} MB" if entry.made else "-"]
        for entry in entries
    ]
    heads = ["environment", "Python", "pins", "made"]
    return str(tabulate(table, headers=heads, disable_numparse=True, maxcolwidths=[None, None, 36, None]))
