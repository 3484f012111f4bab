#!/usr/bin/env bash
# Builds the documentation site from docs/ and the docstrings; warnings are errors. Needs no network.
#
#   bash .dev_scripts/build_docs.sh                  # into build/docs/html
#   bash .dev_scripts/build_docs.sh --out FOLDER
#
# Needs Python with mmlaplace and requirements/docs.txt, both of which tools/setup_env.sh installs:
# PYTHON=… names it (default: .venv/bin/python, else python3). Takes about half a minute.
set -Eeuo pipefail
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=build/docs/html given=
usage() { sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
    case "$1" in
        --out) out="${2:?--out needs a folder}" given=1; shift 2 ;;
        -h | --help) usage; exit 0 ;;
        *) echo "build_docs: unknown option '$1' (see --help)" >&2; exit 2 ;;
    esac
done
# A folder given from outside is relative to where the command was called.
case "$out" in /*) ;; *) [ -z "$given" ] || out="$called_from/$out" ;; esac
python="${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}"
if ! "$python" -c 'import sphinx, myst_parser, furo' 2>/dev/null; then
    echo "build_docs: $python has no Sphinx; to fix it: $python -m pip install -r requirements/docs.txt" >&2
    exit 1
fi
# What Sphinx keeps between builds does not notice a changed docstring. -n: every reference resolves.
doctrees=$(mktemp -d)
trap 'rm -rf "$doctrees"' EXIT
"$python" -m sphinx -b html -d "$doctrees" -n -W --keep-going -q docs "$out"
echo "build_docs: written to $out/index.html"
