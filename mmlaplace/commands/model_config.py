"""``python -m mmlaplace config``: a config of the model zoo with all that it inherits."""

import argparse
import sys

from ..model_zoo import get_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command, and the function that runs it."""
    parser.description = (
        'Print a config with all that it inherits. In a file of its own it is a base for your '
        'configs, outside of a clone too: python -m mmlaplace config NAME > base.py, and in the '
        "config beside it _base_ = 'base.py'."
    )
    parser.add_argument('name', metavar='NAME', help='one that python -m mmlaplace list prints')
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the config. The exit status is 1 if there is no model of this name."""
    try:
        config = get_config(args.name)
    except ValueError as error:
        sys.stderr.write(f'{error}\n')
        return 1
    sys.stdout.write(config.pretty_text)
    return 0
