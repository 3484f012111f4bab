"""Train any config of this project, by the tools/train.py of the config's toolbox.

The config's default_scope names the toolbox: mmpretrain, mmdet or mmseg. The options are those of
the toolbox's script. With a config and --help, the script lists them.

Examples:
  python tools/train.py configs/detection/laplacianformer/retinanet_laplacianformer-tiny_fpn_1x_coco.py --amp
  python tools/train.py CONFIG --work-dir DIR --resume --cfg-options train_dataloader.batch_size=4
  python tools/train.py CONFIG --help
"""  # noqa: E501

from mmlaplace.commands.toolbox_scripts import run_toolbox_script

if __name__ == '__main__':
    run_toolbox_script('train.py', __doc__)
