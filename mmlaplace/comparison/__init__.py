"""Attentions, backbones and ops side by side: who takes part, tables and plots of results."""
