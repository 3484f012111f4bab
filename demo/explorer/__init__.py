"""What the attention explorer computes and draws. Nothing but ``page.py`` needs gradio."""

import sys
from pathlib import Path

# The hosts and contenders of comparisons are those of the tool that trains them.
sys.path.append(str(Path(__file__).resolve().parents[2] / 'tools/analysis_tools'))
