#!/usr/bin/env bash
# Debian's Prometheus and Alertmanager, for the demo and the tests: installed when missing and allowed.
set -euo pipefail
missing=()
for tool in prometheus promtool; do command -v "$tool" >/dev/null || missing+=(prometheus); done
for tool in prometheus-alertmanager amtool; do command -v "$tool" >/dev/null || missing+=(prometheus-alertmanager); done
[ ${#missing[@]} -eq 0 ] && exit 0
packages=$(printf '%s\n' "${missing[@]}" | sort -u | tr '\n' ' ')
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "setup: missing: $packages- install them (Debian: sudo apt-get install $packages) and try again" >&2
  exit 1
fi
echo "setup: installing $packages"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $packages; } >"$log" 2>&1 ||
  { cat "$log"; echo "setup: could not install $packages" >&2; exit 1; }
