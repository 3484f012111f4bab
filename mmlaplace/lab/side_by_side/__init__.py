"""Compare attentions, backbones and ops: lists of candidates, tables and plots of results."""
