"""Compare attentions, backbones and ops: lists of contenders, tables and plots of results."""
