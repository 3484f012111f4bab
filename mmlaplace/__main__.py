"""The commands of mmlaplace.

Examples:
  python -m mmlaplace list '*pola*' --task detection
  python -m mmlaplace config laplacianformer-tiny_8xb128_in1k > base.py
  python -m mmlaplace check
  python -m mmlaplace compare my_attention.py:MyAttention --with SOFT Pola Softmax
  python -m mmlaplace compare trainings --help
"""

import argparse
import sys
from typing import Optional, Sequence

from .check import report
from .commands import model_config, model_list
from .writing import print_in_any_locale


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run a command of the command line, and return its exit status."""
    print_in_any_locale()
    parser = argparse.ArgumentParser(
        prog='python -m mmlaplace',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def show_help(args: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    parser.set_defaults(run=show_help)
    commands = parser.add_subparsers(metavar='COMMAND')
    model_list.add_arguments(commands.add_parser('list', help='list the models'))
    model_config.add_arguments(commands.add_parser('config', help='print a config in full'))
    report.add_arguments(commands.add_parser('check', help='check the installation'))
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ['compare']:  # which imports the studies, matplotlib and torch's compiler
        from .lab.compare import command

        return command.main(given[1:])
    commands.add_parser('compare', help='compare an attention of yours with others')
    args = parser.parse_args(given)
    return args.run(args)


if __name__ == '__main__':
    sys.exit(main())
