"""The attention explorer: its computations and pictures. Only ``page.py`` needs gradio."""
