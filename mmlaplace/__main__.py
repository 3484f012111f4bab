"""The commands of mmlaplace.

Examples:
  python -m mmlaplace list '*pola*' --task detection
  python -m mmlaplace config laplacianformer-tiny_8xb128_in1k > base.py
  python -m mmlaplace own detect data/mine
  python -m mmlaplace verify cswin-tiny --data data/imagenet/val
  python -m mmlaplace check
  python -m mmlaplace compare my_attention.py:MyAttention --with SOFT Pola Softmax
  python -m mmlaplace compare trainings --help
"""

import argparse
import sys
from importlib import import_module
from typing import Optional, Sequence

from .check import report
from .commands import model_config, model_list
from .writing import print_in_any_locale

# Commands that parse their arguments themselves, in modules that others need not import: the last
# one imports the studies, matplotlib and torch's compiler.
WITH_A_PARSER = {
    'own': ('.commands.own_config', 'write a config for images of your own'),
    'verify': ('.commands.verify', 'test a released file on the data of its score'),
    'compare': ('.lab.compare.command', 'compare an attention of yours with others'),
}


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
    for name, (module, about) in WITH_A_PARSER.items():
        if given[:1] == [name]:
            return import_module(module, __package__).main(given[1:])
        commands.add_parser(name, help=about)
    args = parser.parse_args(given)
    return args.run(args)


if __name__ == '__main__':
    sys.exit(main())
