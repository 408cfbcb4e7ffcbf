"""``conform``: record a bundle, see and make what can run on this box, merge rows into a matrix, explain a cell."""

import argparse
import io
import os
import sys
import textwrap
from collections.abc import Sequence

from conform.commands import COMMANDS
from harness.core.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0; 1 verdict negative; 2 bad input; 130 interrupted; 141 nobody read to the end."""
    options = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a console that is not UTF-8 lacks the symbols of a matrix
    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as head, has closed the pipe; no verdict was written to the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("conform", description=__doc__.replace("``", ""))
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.__name__.rpartition(".")[2],
            help=command.HELP,
            description=textwrap.fill(command.HELP[0].upper() + command.HELP[1:] + ".", 78),
            epilog=f"example: {command.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
