"""Test a checkpoint of any config of this project, by the tools/test.py of the toolbox it is for.

The config's default_scope says which: mmpretrain, mmdet or mmseg. Options are that script's own;
with a config and --help it lists them.

Examples:
  python tools/test.py CONFIG CHECKPOINT --work-dir DIR
  python tools/test.py CONFIG CHECKPOINT --show-dir pictures
  python tools/test.py CONFIG --help
"""

from mmlaplace.commands.toolbox_scripts import run_toolbox_script

if __name__ == '__main__':
    run_toolbox_script('test.py', __doc__)
