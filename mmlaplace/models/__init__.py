from . import attentions, backbones, layers

__all__ = ['attentions', 'backbones', 'layers']
