"""Export models by mmdeploy for ONNX Runtime, and compare what both runtimes predict.

It is what mmdeploy's own ``deploy.py`` does: ``torch2onnx``, then the backend model of its task
processor, on a photograph. That tool is in mmdeploy's repository alone, not in its package. Weights
are random. Run by .dev_scripts/check_mmdeploy.sh.

Example:
  python .dev_scripts/check_mmdeploy.py CONFIG
"""

import os
import sys
import tempfile
import traceback
from pathlib import Path

os.environ.setdefault('MMLAPLACE_BACKEND', 'reference')  # standard operators, not ours

import mmcv
import skimage.data
import torch
from mmengine.config import Config

from mmlaplace.commands.command_line import ToolParser
from mmlaplace.model_zoo import build_model

CONFIGS = (
    'configs/classification/laplacianformer/laplacianformer-micro_1xb32_mini.py',
    'configs/detection/laplacianformer/retinanet_laplacianformer-micro_fpn_mini.py',
    'configs/segmentation/laplacianformer/laplacianformer-micro_upernet_1xb16_mini.py',
)
SIDE = 192  # of the photograph, in pixels
# Boxes are kept whatever their score, as those of random weights are low.
BOXES = dict(
    score_threshold=0.0,
    confidence_threshold=0.0,
    iou_threshold=0.5,
    pre_top_k=1000,
    max_output_boxes_per_class=100,
    keep_top_k=100,
    background_label_id=-1,
)
# By toolbox: mmdeploy's task, and the names of the outputs.
TASKS = dict(
    mmpretrain=(dict(task='Classification'), ['output']),
    mmdet=(
        dict(task='ObjectDetection', model_type='end2end', post_processing=BOXES),
        ['dets', 'labels'],
    ),
    mmseg=(dict(task='Segmentation', with_argmax=True), ['output']),
)


def deploy_config(scope: str) -> Config:
    """What mmdeploy's own configs for ONNX Runtime with a static shape say."""
    task, outputs = TASKS[scope]
    return Config(
        dict(
            codebase_config=dict(type=scope, **task),
            backend_config=dict(type='onnxruntime'),
            onnx_config=dict(
                type='onnx',
                export_params=True,
                keep_initializers_as_inputs=False,
                opset_version=17,
                save_file='end2end.onnx',
                input_names=['input'],
                output_names=outputs,
                input_shape=None,
                optimize=True,
            ),
        )
    )


def difference(scope: str, *predictions: object) -> float:
    """How far predictions are apart: of scores, or the share of pixels with another class."""
    if scope == 'mmpretrain':
        one, other = (x.pred_score for x in predictions)
        return (one - other).abs().max().item()
    if scope == 'mmdet':
        scores = [x.pred_instances.scores.sort(descending=True)[0][:50] for x in predictions]
        return (scores[0] - scores[1]).abs().max().item()
    labels = [x.pred_sem_seg.data for x in predictions]
    return (labels[0] != labels[1]).float().mean().item()


def check(config: str, folder: Path) -> float:
    """Export the model of a config, run it, and return the difference."""
    from mmdeploy.apis import build_task_processor, torch2onnx  # in an environment of its own

    torch.manual_seed(0)
    cfg = Config.fromfile(config)
    scope = cfg.default_scope
    cfg.model.backbone.init_cfg = None
    if scope == 'mmdet':
        cfg.model.test_cfg.update(score_thr=0.0)
    model = build_model(cfg)
    model.init_weights()
    checkpoint, image = folder / 'model.pth', folder / 'image.png'
    torch.save(dict(state_dict=model.state_dict(), meta={}), checkpoint)
    # mmdeploy pools to 6 x 6 cells as PyTorch does where 6 divides the sides of the last map.
    photo = mmcv.imresize(mmcv.rgb2bgr(skimage.data.astronaut()), (SIDE, SIDE))
    mmcv.imwrite(photo, str(image))
    deploy = deploy_config(scope)
    torch2onnx(str(image), str(folder), 'end2end.onnx', deploy, cfg, str(checkpoint), 'cpu')
    processor = build_task_processor(cfg, deploy, 'cpu')
    pytorch = processor.build_pytorch_model(str(checkpoint))
    runtime = processor.build_backend_model([str(folder / 'end2end.onnx')])
    data, inputs = processor.create_input(
        str(image), data_preprocessor=getattr(pytorch, 'data_preprocessor', None)
    )
    with torch.no_grad():
        expected = pytorch(data['inputs'], data['data_samples'], mode='predict')[0].clone()
        inputs = inputs if isinstance(inputs, torch.Tensor) else torch.stack(list(inputs))
        got = runtime(inputs, data['data_samples'], mode='predict')[0]
    return difference(scope, expected, got)


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('configs', nargs='*', default=CONFIGS)
    failed = []
    for config in parser.parse_args().configs:
        name = Path(config).stem
        with tempfile.TemporaryDirectory() as folder:
            try:
                apart = check(config, Path(folder))
            except Exception:  # whatever a toolbox raises is reported, and the next model is tried
                traceback.print_exc()
                failed.append(f'{name}: not exported')
                continue
        print(f'{name}: {apart:.1e} apart')
        if apart > 1e-3:  # probabilities, and the share of pixels whose two best classes are alike
            failed.append(f'{name}: {apart:.1e} apart')
    sys.exit('\n'.join(failed) or None)


if __name__ == '__main__':
    main()
