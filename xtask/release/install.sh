#!/bin/sh
# Installs the launcher `monomorph` for this machine: fetches its archive, checks its digest, and puts the
# program into a directory. Needs tar, sha256sum or shasum, and curl or wget unless the release is a
# directory.
set -eu

base="https://github.com/monomorph/monomorph/releases/latest/download"
into="${HOME:-}/.local/bin"

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

usage() {
    cat <<'END'
usage: install.sh [--base URL|DIR] [--to DIR]
  --base  where the release is: an address, file://… or a directory
  --to    directory for the program (default: ~/.local/bin)
END
}

while [ $# -gt 0 ]; do
    case "$1" in
        --base | --to)
            [ $# -ge 2 ] || fail "$1 wants a value"
            if [ "$1" = --base ]; then base="${2%/}"; else into="$2"; fi
            shift 2
            ;;
        --help)
            usage
            exit 0
            ;;
        *) fail "there is no flag $1; --help names all" ;;
    esac
done
case "$into" in /.local/bin) fail "HOME is not set: name a directory with --to" ;; esac

[ "$(uname -s)" = Linux ] || fail "there are programs for Linux, and this is $(uname -s)"
case "$(uname -m)" in
    x86_64 | amd64) host=x86_64-unknown-linux-gnu ;;
    aarch64 | arm64) host=aarch64-unknown-linux-gnu ;;
    *) fail "there are programs for x86_64 and aarch64, and this is $(uname -m)" ;;
esac

# fetch NAME FILE
fetch() {
    case "$base" in
        http://* | https://*)
            if command -v curl >/dev/null 2>&1; then
                curl --fail --silent --show-error --location --retry 3 --output "$2" "$base/$1"
            elif command -v wget >/dev/null 2>&1; then
                wget --quiet --output-document "$2" "$base/$1"
            else
                fail "neither curl nor wget is installed"
            fi
            ;;
        *) cp "${base#file://}/$1" "$2" ;;
    esac || fail "$base has no $1"
}

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
archive="monomorph-$host.tar.gz"
fetch "$archive" "$work/$archive"
fetch "$archive.sha256" "$work/$archive.sha256"
if command -v sha256sum >/dev/null 2>&1; then
    check="sha256sum -c"
elif command -v shasum >/dev/null 2>&1; then
    check="shasum -a 256 -c"
else
    fail "neither sha256sum nor shasum is installed"
fi
(cd "$work" && $check "$archive.sha256" >/dev/null 2>&1) ||
    fail "$archive of $base is damaged or another: its SHA-256 is not the one beside it"
tar -xzf "$work/$archive" -C "$work"
mkdir -p "$into"
# Renamed, so that a launcher that runs is not disturbed.
cp "$work/monomorph-$host/monomorph" "$into/.monomorph.$$"
chmod 755 "$into/.monomorph.$$"
mv "$into/.monomorph.$$" "$into/monomorph"
echo "$into/monomorph"
case ":${PATH:-}:" in
    *":$into:"*) ;;
    *) echo "install.sh: $into is not in PATH: add it, or give the path" >&2 ;;
esac
