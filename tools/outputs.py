"""What the tools share about the files they write."""

import argparse
import json
from pathlib import Path
from typing import Optional


def refuse_existing(parser: argparse.ArgumentParser, force: bool, *paths: Optional[Path]) -> None:
    """End with an error if one of the files is there and may not be replaced."""
    for path in filter(None, paths):
        if path.exists() and not force:
            parser.error(f'{path} is there already; --force replaces it')


def write_json(path: Path, content: dict) -> None:
    """Write a file, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + '\n')
