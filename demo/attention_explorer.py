"""Look into attentions in the browser: click on a pixel, and see the weights of its query.

The exact rows of attention matrices stand side by side, with their weight over distance and their
entropy. Every attention can be seen on every host with random weights. The demo finds trained
models by itself: the model of tools/quickstart.sh, and those of
python -m mmlaplace compare trainings. It needs gradio: pip install "mmlaplace[demo]".

Examples:
  python demo/attention_explorer.py                # then open http://127.0.0.1:7860
  python demo/attention_explorer.py --model CONFIG CHECKPOINT NAME --model CONFIG2 CHECKPOINT2
"""

import socket
import sys
from pathlib import Path

from explorer.images import Images
from explorer.models import Models, compared, from_config, quick_start
from explorer.rows import Explorer, default_view

from mmlaplace.commands.command_line import ToolParser
from mmlaplace.dependencies import missing_package

ROOT = Path(__file__).resolve().parents[1]


def check_free(parser: ToolParser, host: str, port: int) -> None:
    """End with a message where the address cannot be listened on."""
    with socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except (OSError, OverflowError) as error:
            parser.error(f'--host {host} --port {port}: {error}; take another --port')


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument(
        '--model',
        nargs='+',
        action='append',
        default=[],
        metavar=('CONFIG', 'CHECKPOINT'),
        help='config, checkpoint and name of a model, again for each; weights are random '
        'without a checkpoint',
    )
    parser.add_argument(
        '--quick-start',
        type=Path,
        default=ROOT / 'work_dirs/quickstart',
        metavar='DIR',
        help='default: work_dirs/quickstart',
    )
    parser.add_argument(
        '--compared',
        type=Path,
        default=ROOT / 'work_dirs/compare_attentions',
        metavar='DIR',
        help='default: work_dirs/compare_attentions',
    )
    parser.add_argument(
        '--host',
        default='127.0.0.1',
        help='address to listen on; default: %(default)s, this machine alone; '
        '0.0.0.0: for everybody who can reach it',
    )
    parser.add_argument('--port', type=int, default=7860, help='default: %(default)s')
    args = parser.parse_args()
    try:
        import uvicorn
        from explorer.page import server
    except ImportError as error:
        sys.exit(f'{parser.prog}: error: {missing_package("gradio", "demo", error)}')
    check_free(parser, args.host, args.port)
    sources = {}
    for model in args.model:
        if len(model) > 3:
            parser.error(f'--model {" ".join(model)}: give a config, a checkpoint and a name')
        config = model[0]
        checkpoint = model[1] if len(model) > 1 else None
        name = model[2] if len(model) > 2 else None
        try:
            source = from_config(config, checkpoint, name)
        except Exception as error:  # a config runs code, which may raise anything
            parser.error(
                f'--model {config}: {error or type(error).__name__}; name a config of this project'
            )
        if source.title in sources:
            parser.error(
                f'--model: two models have the name {source.title}; give a name after the '
                'checkpoint'
            )
        sources[source.title] = source
    given = list(sources)
    sources.update({**quick_start(args.quick_start), **compared(args.compared)})
    explorer = Explorer(Images(), Models(sources))
    app = server(explorer, default_view(explorer, given))
    print(f'attention explorer: http://{args.host}:{args.port} (Ctrl+C ends it)', flush=True)
    uvicorn.run(app, host=args.host, port=args.port, log_level='warning')


if __name__ == '__main__':
    main()
