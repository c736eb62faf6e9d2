#!/usr/bin/env bash
# Installs, on Debian, what links servers for an Arm host (a DGX Spark's) and runs them under an emulator:
# needs root. Versions are those of the Debian release; rustc-web is its current rustc, which comes with an
# Arm standard library.
set -euo pipefail
dpkg --add-architecture arm64
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
