"""What the attention explorer computes and draws. Nothing but ``page.py`` needs gradio."""
