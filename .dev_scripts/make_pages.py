"""Bring all generated files in step with the code, metafiles and logs, and say what changed.

That are the tables and lists of the pages, the imports of the package's folders, and the list of
metafiles. A person writes the rest of a page, and reads it again after a table has changed.

Examples:
  python .dev_scripts/make_pages.py
  python .dev_scripts/make_pages.py options model_zoo  # some alone
  python .dev_scripts/make_pages.py --check            # exit status 1 if a file is not in step
"""

import argparse
import sys
from importlib import import_module

from pages.files import ROOT, Files

# The first imports nothing of mmlaplace, which may not import before its files are in step.
GENERATORS = (
    'package',
    'goldens',
    'counts',
    'api',
    'options',
    'formulas',
    'model_zoo',
    'heads',
    'choose',
    'forwards',
    'hosts',
    'deploy',
    'fastest',
    'notebook',
    'which_attention',
)


def main() -> None:
    sys.path.insert(0, str(ROOT))  # the package of this clone, also where another is installed
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument('names', nargs='*', help=f'of {", ".join(GENERATORS)} (default: all)')
    parser.add_argument('--check', action='store_true', help='only name the files not in step')
    args = parser.parse_args()
    unknown = sorted({*args.names} - {*GENERATORS})
    if unknown:
        parser.error(f'there is no {", ".join(unknown)}; the names are {", ".join(GENERATORS)}')
    changed = False
    for name in args.names or GENERATORS:
        files = Files()
        try:
            import_module(f'pages.{name}').update(files)
        except ValueError as error:  # of a generator, which names the fix
            sys.exit(f'make_pages.py: error: {name}: {error}')
        changed |= files.save(only_tell=args.check)
    if changed and args.check:
        sys.exit('the files above are not in step; run python .dev_scripts/make_pages.py')
    if not changed:
        print('all generated files are in step')


if __name__ == '__main__':
    main()
