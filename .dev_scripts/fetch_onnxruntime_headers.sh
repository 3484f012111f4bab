#!/usr/bin/env bash
# Puts the headers of ONNX Runtime into a folder, for tools/deployment/build_onnxruntime_ops.py:
#
#   bash .dev_scripts/fetch_onnxruntime_headers.sh DIR     # prints what ORT_INCLUDE is to be
#
# They are those of Debian's package libonnxruntime-dev, which Debian has from version 13 (trixie) on. An
# older Debian takes the package of that release from its own mirror, checked by apt as every package is.
# Nothing is installed, and the machine's lists stay as they are.
set -Eeuo pipefail
folder=${1:?fetch_onnxruntime_headers: name a folder for the headers}
package=libonnxruntime-dev
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
apt=$(mktemp -d "$folder/apt.XXXXXX")
trap 'rm -r "$apt"' EXIT
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -v security | sed -n 1p)
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] $mirror trixie main" > "$apt/sources.list"
options=(-qq -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
(cd "$apt" && apt-get "${options[@]}" download "$package")
dpkg-deb -x "$apt/$package"_*.deb "$folder"
echo "$folder/usr/include/onnxruntime"
