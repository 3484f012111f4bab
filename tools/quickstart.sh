#!/usr/bin/env bash
# Sets everything up, trains small models on real images, tests them and draws their predictions.
#
#   bash tools/quickstart.sh                        # a classifier
#   bash tools/quickstart.sh --task detection       # Mask R-CNN and RetinaNet
#   bash tools/quickstart.sh --task segmentation    # UPerNet and Semantic FPN
#   options: --work-dir DIR                         # default: work_dirs/quickstart
#
# The first run installs packages (minutes) and, for detection and segmentation, builds mmcv's ops (2 to 15
# minutes on 2 cores). After that, each model takes 4 to 8 minutes on 2 CPU cores. Detectors and segmentors
# start from the classifier, which is trained first where it is missing. Training and testing are mmpretrain's, mmdet's and mmseg's own
# tools/train.py and tools/test.py with configs of this project.
set -Eeuo pipefail
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work_dir=work_dirs/quickstart given=
task=classification
usage() { sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
    case "$1" in
        --task) task="${2:?--task needs a name: classification, detection or segmentation}"; shift 2 ;;
        --work-dir) work_dir="${2:?--work-dir needs a folder}" given=1; shift 2 ;;
        -h | --help) usage; exit 0 ;;
        *) echo "quickstart: unknown option '$1' (see --help)" >&2; exit 2 ;;
    esac
done
case "$task" in
    classification | detection | segmentation) ;;
    *) echo "quickstart: no task '$task'; there are: classification detection segmentation" >&2; exit 2 ;;
esac
case "$work_dir" in /*) ;; *) [ -z "$given" ] || work_dir="$called_from/$work_dir" ;; esac
case "$work_dir" in  # mmengine's --cfg-options splits at these
    *[[:space:],]*) echo "quickstart: --work-dir $work_dir has a space or a comma; name another folder" >&2; exit 2 ;;
esac

bash tools/setup_env.sh --task "$task"
python=.venv/bin/python
results=() weights=() pictures=()

# run TOOLBOX CONFIG FOLDER "METRIC LEAST [METRIC LEAST]" [options]: train, test, draw, check the metrics.
run() {
    local toolbox="$1" config="configs/$2" folder="$3" expected="$4" started=$SECONDS checkpoint measured
    shift 4
    echo "== train (by $toolbox, $config, into $folder)"
    "$python" tools/train.py "$config" --work-dir "$folder" "$@"
    checkpoint=$(cat "$folder/last_checkpoint")
    echo "== test on held-out images"
    "$python" tools/test.py "$config" "$checkpoint" --work-dir "$folder/test"
    echo "== draw predictions"
    "$python" tools/visualization/vis_predictions.py "$config" "$checkpoint" --gamma 0.5 \
        --out "$folder/predictions.png" --force  # the photographs are dimmed
    weights+=("${checkpoint#"$PWD"/}")
    pictures+=("$folder/predictions.png")
    measured=$("$python" - "$folder/test" $expected <<'PYTHON'
import json
import sys
from pathlib import Path

folder, *expected = sys.argv[1:]
log = json.loads(sorted(Path(folder).glob('*/*.json'))[-1].read_text())
shown = []
for metric, least in zip(expected[::2], expected[1::2]):
    shown.append(f'{metric} {log[metric]:.4g} ({least} or more expected)')
    if not log[metric] >= float(least):
        sys.exit(f'quickstart: {metric} is {log[metric]}, below the expected {least}; read the log in {folder}')
print(', '.join(shown))
PYTHON
    )
    results+=("$(basename "$config" .py): $measured, $(((SECONDS - started) / 60)) min $(((SECONDS - started) % 60)) s")
}

classifier=configs/classification/laplacianformer/laplacianformer-micro_1xb32_mini.py
echo "== mini data sets"
# A classifier whose predictions are not drawn yet is one whose training was cut short.
if [ "$task" = classification ] || [ ! -f "$work_dir/last_checkpoint" ] ||
    [ "$work_dir/predictions.png" -ot "$work_dir/last_checkpoint" ]; then
    "$python" tools/dataset_converters/make_mini_datasets.py --tasks classification
    run mmpretrain "${classifier#configs/}" "$work_dir" 'accuracy/top1 95'
fi
if [ "$task" != classification ]; then
    "$python" tools/dataset_converters/make_mini_datasets.py --tasks "$task"
    from=(--cfg-options "model.backbone.init_cfg.checkpoint=$work_dir/$(basename "$(cat "$work_dir/last_checkpoint")")")
fi
case "$task" in
    detection)
        run mmdet detection/laplacianformer/mask-rcnn_laplacianformer-micro_fpn_mini.py "$work_dir/mask-rcnn" \
            'coco/bbox_mAP_50 0.9 coco/segm_mAP_50 0.8' "${from[@]}"
        run mmdet detection/laplacianformer/retinanet_laplacianformer-micro_fpn_mini.py "$work_dir/retinanet" \
            'coco/bbox_mAP_50 0.8' "${from[@]}" ;;
    segmentation)
        run mmseg segmentation/laplacianformer/laplacianformer-micro_upernet_1xb16_mini.py "$work_dir/upernet" \
            'mIoU 65' "${from[@]}"
        run mmseg segmentation/laplacianformer/laplacianformer-micro_fpn_1xb16_mini.py "$work_dir/fpn" \
            'mIoU 65' "${from[@]}" ;;
esac

printf '\n'
printf '%s\n' "${results[@]}"
printf 'Weights:  %s\n' "${weights[@]}"
printf 'Look at:  %s\n' "${pictures[@]}"
if [ "$task" = classification ]; then
    cat <<EOF
Predict the digit on an image, train the same model under softmax attention, or go on with detectors:
  $python demo/image_demo.py data/mini/classification/val/7/0001_0.png $classifier ${weights[0]}
  $python tools/train.py configs/classification/laplacianformer/laplacianformer-micro-softmax_1xb32_mini.py
  bash tools/quickstart.sh --task detection
EOF
fi
