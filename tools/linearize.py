"""Linearize a trained model: put another attention in the place of softmax, and let it imitate it.

All weights that fit are kept. Then each new attention alone learns the output of the old one, given
the old one's input. After that the whole backbone learns the old maps, and a classifier the old
logits. The images are those of the config's train_dataloader; labels are not used. An interrupted
run goes on from its last state.

It writes a config, a checkpoint and a log into the work directory. The config and the checkpoint
are for tools/test.py, and for tools/train.py, by which one can fine-tune them.

Examples:
  python tools/linearize.py CONFIG CHECKPOINT --attention FLattenAttention
  python tools/linearize.py CONFIG CHECKPOINT --attention LaplacianAttention \\
      --options num_landmarks=16 --layer-steps 2000 --whole-steps 4000 --lr 5e-4
"""

import shlex
from pathlib import Path

import torch
from mmengine.config import Config, DictAction
from mmengine.registry import DefaultScope
from mmengine.runner import Runner

from mmlaplace.checkpoints import UnsafeCheckpointError, write_weights
from mmlaplace.commands.command_line import (
    ToolParser,
    check_backbone,
    load_or_exit,
    read_config,
    write_json,
)
from mmlaplace.commands.terminal import command
from mmlaplace.linearizing import (
    Schedule,
    distill,
    image_batches,
    keep_weights,
    linear_config,
    softmax_places,
)
from mmlaplace.model_zoo import build_model
from mmlaplace.writing import whole_file


def parse_arguments():
    parser = ToolParser(__doc__)
    parser.add_trained_model('classifier, detector or segmentor with softmax')
    parser.add_argument('--attention', required=True, metavar='NAME',
                        help='the new one, such as FLattenAttention')  # fmt: skip
    parser.add_argument('--options', nargs='+', action=DictAction, default={},
                        metavar='KEY=VALUE', help='of the new attention')  # fmt: skip
    default = Schedule()
    for name in ('layer_steps', 'whole_steps', 'lr'):
        value = getattr(default, name)
        parser.add_argument(f'--{name.replace("_", "-")}', type=type(value), default=value,
                            help='default: %(default)s')  # fmt: skip
    parser.add_argument('--seed', type=int, default=0, help='default: %(default)s')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--work-dir', type=Path, help='default: work_dirs/CONFIG_NAME')
    args = parser.parse_args()
    options = Config()
    options.merge_from_dict(args.options)  # names with dots become dicts
    args.options = options.to_dict()
    if args.work_dir is None:
        args.work_dir = Path('work_dirs', f'{Path(args.config).stem}_{args.attention}')
    if min(args.layer_steps, args.whole_steps) < 0 or args.lr <= 0:
        parser.error(
            f'steps must not be negative and --lr must be positive, got {args.layer_steps}, '
            f'{args.whole_steps} and {args.lr}'
        )
    return parser, args


def main() -> None:
    parser, args = parse_arguments()
    out = args.work_dir / 'linearized.pth'
    if out.exists():
        parser.error(f'{out} is there already; remove it, or take another --work-dir')
    cfg = read_config(args.config, 'default_scope', 'model.backbone', 'train_dataloader')
    torch.manual_seed(args.seed)
    check_backbone(cfg, args.config)
    old = build_model(cfg)
    new_cfg = Config(cfg.to_dict())
    try:
        new_cfg.model.backbone = linear_config(
            cfg.model.backbone.to_dict(), old.backbone, args.attention, args.options
        )
        new = build_model(new_cfg)
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    load_or_exit(old, args.checkpoint)
    try:
        new.init_weights()
    except UnsafeCheckpointError as error:  # of an init_cfg
        parser.error(str(error))
    new.load_state_dict(
        {k: v for k, v in old.state_dict().items() if not k.startswith('backbone.')}, strict=False
    )
    places = softmax_places(old.backbone)
    kept = keep_weights(new.backbone, old.backbone, places)
    print(
        f'{args.attention} takes {len(places)} places of softmax; {100 * kept.share:.1f} % of the '
        f"backbone's parameters are kept"
    )
    schedule = Schedule(args.layer_steps, args.whole_steps, args.lr)
    settings = dict(
        config=args.config, checkpoint=args.checkpoint, attention=args.attention,
        options=args.options, seed=args.seed, **schedule._asdict(),
    )  # fmt: skip
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        loader = Runner.build_dataloader(cfg.train_dataloader, seed=args.seed)
    state = args.work_dir / 'state.pth'
    try:
        batches = image_batches(old, loader)
        done = distill(new.to(args.device), old.to(args.device), places, batches, schedule, state,
                       settings)  # fmt: skip
    except (ValueError, FloatingPointError) as error:
        parser.error(str(error))
    with whole_file(args.work_dir / 'linearized.py') as temporary:
        new_cfg.dump(temporary)
    write_json(args.work_dir / 'linearized.json', dict(settings=settings, kept=kept.share, **done))
    write_weights(out, new.cpu().state_dict(), dict(linearized_from=args.checkpoint))
    state.unlink(missing_ok=True)
    losses = (
        f'{made["losses"][-1]:.3g} ({phase})' for phase, made in done.items() if made['losses']
    )
    print(f'last losses: {", ".join(losses)}; wrote {out}')
    model = shlex.join([str(args.work_dir / 'linearized.py'), str(out)])
    print(command(Path(__file__).absolute().with_name('test.py'), model))


if __name__ == '__main__':
    main()
