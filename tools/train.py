"""Train any config of this project, by the tools/train.py of the toolbox it is for.

The config's default_scope says which: mmpretrain, mmdet or mmseg. Options are that script's own;
with a config and --help it lists them.

Examples:
  python tools/train.py configs/detection/laplacianformer/retinanet_laplacianformer-tiny_fpn_1x_coco.py --amp
  python tools/train.py CONFIG --work-dir DIR --resume --cfg-options train_dataloader.batch_size=4
  python tools/train.py CONFIG --help
"""  # noqa: E501

from mmlaplace.commands.toolbox_scripts import run_toolbox_script

if __name__ == '__main__':
    run_toolbox_script('train.py', __doc__)
