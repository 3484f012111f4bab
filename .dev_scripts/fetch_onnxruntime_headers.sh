#!/usr/bin/env bash
# Puts the headers of ONNX Runtime into a folder, for tools/deployment/build_onnxruntime_ops.py:
#
#   bash .dev_scripts/fetch_onnxruntime_headers.sh DIR     # prints what ORT_INCLUDE is to be
#
# They are those of Debian's package libonnxruntime-dev, which Debian has from version 13 (trixie) on. An
# older Debian takes the package of that release from its own mirror, checked by apt as every package is.
# Nothing is installed, and the machine's lists stay as they are.
set -Eeuo pipefail
folder=${1:?a folder for the headers}
package=libonnxruntime-dev
mkdir -p "$folder/apt/lists/partial" "$folder/apt/cache/archives/partial"
folder=$(cd "$folder" && pwd)
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -v security | head -1)
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] $mirror trixie main" > "$folder/apt/sources.list"
options=(-qq -o "Dir::Etc::sourcelist=$folder/apt/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$folder/apt/lists" -o "Dir::Cache=$folder/apt/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
(cd "$folder/apt" && apt-get "${options[@]}" download "$package")
dpkg-deb -x "$folder"/apt/"$package"_*.deb "$folder"
rm -r "$folder/apt"
echo "$folder/usr/include/onnxruntime"
