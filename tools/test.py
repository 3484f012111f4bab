"""Test a checkpoint of any config of this project, by the tools/test.py of the config's toolbox.

The config's default_scope names the toolbox: mmpretrain, mmdet or mmseg. The options are those of
the toolbox's script. With a config and --help, the script lists them.

Examples:
  python tools/test.py CONFIG CHECKPOINT --work-dir DIR
  python tools/test.py CONFIG CHECKPOINT --show-dir pictures
  python tools/test.py CONFIG --help
"""

from mmlaplace.commands.toolbox_scripts import run_toolbox_script

if __name__ == '__main__':
    run_toolbox_script('test.py', __doc__)
