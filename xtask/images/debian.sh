#!/usr/bin/env bash
# Installs, on Debian, what the check of images wants and does not find: programs that read them and releases,
# and one that runs what is in them without a container engine. Needs root.
set -euo pipefail
packages=()
command -v skopeo >/dev/null || packages+=(skopeo)
command -v umoci >/dev/null || packages+=(umoci)
command -v bwrap >/dev/null || packages+=(bubblewrap)
command -v zstd >/dev/null || packages+=(zstd)
[ ${#packages[@]} = 0 ] && exit 0
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
