"""Write tables and plots of the results of compare_attentions.py, from its JSON file.

Example:
  python tools/analysis_tools/attention_report.py work_dirs/compare_attentions/results.json
"""

from pathlib import Path

from mmlaplace.commands.command_line import ToolParser, read_json
from mmlaplace.lab.comparison.attention_report import write_report


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('results', type=Path, help='results.json of compare_attentions.py')
    parser.add_argument('--out', type=Path, help='folder; default: that of the results')
    args = parser.parse_args()
    if args.out and args.out.is_file():
        parser.error(f'--out {args.out} is a file; name a folder')
    content = read_json(args.results, 'results', 'costs')
    for path in write_report(content, args.out or args.results.parent):
        print(f'wrote {path}')


if __name__ == '__main__':
    main()
