"""Write tables and plots of the results of benchmark_backbone.py, from its JSON file.

Examples:
  python tools/benchmarks/backbone_report.py work_dirs/benchmark_backbone.json --markdown
  python tools/benchmarks/backbone_report.py work_dirs/benchmark_backbone.json \\
      --base mmpretrain:ResNet-50 --plot-top1 work_dirs/top1.png --force
  python tools/benchmarks/backbone_report.py docs/logs/benchmark_choose_cpu.json --plot size.png \\
      --only laplacianformer-small pvt-tiny mmpretrain:SwinTransformer-tiny
"""

from pathlib import Path

from mmlaplace.commands.command_line import ToolParser, read_json
from mmlaplace.lab.side_by_side.backbone_report import (
    add_report_options,
    check_report_options,
    draw,
    print_tables,
)


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('result', type=Path, help='JSON of benchmark_backbone.py')
    parser.add_argument('--markdown', action='store_true', help='print the tables as Markdown')
    parser.add_argument(
        '--only', nargs='+', metavar='CANDIDATE', help='of them; default: all that were measured'
    )
    add_report_options(parser)
    args = parser.parse_args()
    result = read_json(args.result, 'candidates')
    for name in args.only or ():
        if name not in result['candidates']:
            parser.error(f'--only {name}: {args.result} has {", ".join(result["candidates"])}')
    if args.only:
        result['candidates'] = args.only
        result['rows'] = [row for row in result['rows'] if row['candidate'] in args.only]
    args.base = args.base or next(iter(args.only or [result['base']]))
    check_report_options(parser, args, result['candidates'])
    print_tables(result, args.base, args.markdown)
    draw(result, args.plot, args.plot_top1)


if __name__ == '__main__':
    main()
