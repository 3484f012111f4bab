"""Backbones, one paper per file with its :class:`Family`.

``python .dev_scripts/make_pages.py`` writes the lines below, one for each registered class.
"""

from .cswin import CSWin as CSWin
from .deit import ViT as ViT
from .dinov2 import DINOv2 as DINOv2
from .dinov3 import DINOv3 as DINOv3
from .efficientvit import EfficientViT as EfficientViT
from .efficientvit import EfficientViTLarge as EfficientViTLarge
from .laplacianformer import LaplacianFormer as LaplacianFormer
from .laplacianformer import LaplacianFormerRows as LaplacianFormerRows
from .mavit import MAViT as MAViT
from .mlla import MLLA as MLLA
from .mobilevitv2 import MobileViTv2 as MobileViTv2
from .polaformer import PolaFormerDeiT as PolaFormerDeiT
from .polaformer import PolaFormerPVT as PolaFormerPVT
from .polaformer import PolaFormerPVTv2 as PolaFormerPVTv2
from .polaformer import PolaFormerSwin as PolaFormerSwin
from .polaformerpp import PolaFormerPP as PolaFormerPP
from .pvt import PVT as PVT
from .pvt import PVTv2 as PVTv2
from .ravlt import RAVLT as RAVLT
from .soft import SOFT as SOFT
from .soft import SOFTPlusPlus as SOFTPlusPlus
from .swiftformer import SwiftFormer as SwiftFormer
from .swin import Swin as Swin
from .swin import SwinV2 as SwinV2
from .vit3 import HViT3 as HViT3
from .xcit import XCiTBackbone as XCiTBackbone
