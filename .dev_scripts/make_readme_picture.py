"""Draw the README's first picture: a photograph, and where seven attentions look from one pixel.

The panels are pictures of the gallery, which demo/attention_gallery.py draws with trained models.

Example:
  python .dev_scripts/make_readme_picture.py
"""

from pathlib import Path

from PIL import Image

from mmlaplace.analysis.recording import photograph
from mmlaplace.commands.command_line import ToolParser
from mmlaplace.lab.figures import new_figure, save

IMAGES = Path(__file__).resolve().parent.parent / 'docs/images'
PICTURE = IMAGES / 'readme.png'
# The reference, the project's three papers, and attentions of backbones with released weights.
# FLatten's few bright tokens cannot be seen at this size.
ATTENTIONS = ('Softmax', 'Laplacian', 'SOFT', 'Pola', 'Agent', 'MLLA', 'MALA')
POINT = (0.5, 0.2)  # of the gallery's query, as shares of width and height


def main() -> None:
    ToolParser(__doc__).parse_args()
    figure, axes = new_figure(2, 4, (8.3, 5.0))
    seen = photograph('astronaut')
    pictures = {'photograph': seen}
    for name in ATTENTIONS:
        pictures[name] = Image.open(IMAGES / f'gallery/{name}Attention.png').convert('RGB')
    for axis, (name, picture) in zip(axes.flat, pictures.items()):
        axis.imshow(picture)
        axis.set_title(name, fontsize=15)
        axis.axis('off')
    across, down = (share * side for share, side in zip(POINT, seen.size))
    for color, width in (('black', 6), ('white', 3)):
        axes[0, 0].plot(across, down, '+', color=color, markersize=14, markeredgewidth=width)
    figure.suptitle(
        'Where seven attentions look from the cross: bright is much weight', fontsize=15
    )
    save(figure, PICTURE, dpi=120)
    print(f'wrote {PICTURE}')


if __name__ == '__main__':
    main()
