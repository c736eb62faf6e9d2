#!/usr/bin/env bash
# Installs, on Debian, what checks of npm's clients and of the chat page want and do not find: npm, which
# fetches pinned packages (the Node that runs them among these), and Chromium. Needs root.
set -euo pipefail
packages=()
command -v npm >/dev/null || packages+=(npm)
command -v chromium >/dev/null || packages+=(chromium)
[ ${#packages[@]} = 0 ] && exit 0
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
