#!/bin/sh
# Takes away what install.sh put on this host; --help says more.
set -eu

usage() {
  cat <<'END'
usage: uninstall.sh [options]

Stops the unit and removes it, its drop-ins from install.sh and the virtual environment. Configuration, history and the
user that owns it stay, as do drop-ins of your own.

  --prefix DIR   where the virtual environment is  [where the unit has it, else /opt/gpuwhy]
  --purge        also remove configuration, history, the user, and all drop-ins
  --dry-run      say what would be done, and do nothing
  -h, --help     say this

Environment: DESTDIR names a folder that files were staged in.
END
}

say() { printf 'gpuwhy: %s\n' "$*"; }
fail() {
  printf 'gpuwhy: %s\n  remedy: %s\n' "$1" "$2" >&2
  exit "${3:-1}"
}
do_() {
  if [ -n "$dry" ]; then say "would run: $*"; else "$@"; fi
}

prefix='' purge='' dry='' DESTDIR=${DESTDIR:-}
while [ $# -gt 0 ]; do
  case $1 in
    --prefix)
      [ $# -ge 2 ] || fail "$1 wants a value" "uninstall.sh --help" 2
      prefix=$2
      shift
      ;;
    --purge) purge=yes ;;
    --dry-run) dry=yes ;;
    -h | --help) usage && exit 0 ;;
    *) fail "$1: no such option" "uninstall.sh --help" 2 ;;
  esac
  shift
done
[ -n "$DESTDIR$dry" ] || [ "$(id -u)" -eq 0 ] || fail "not root" "sudo $0, or --dry-run to see what it does"
units=$DESTDIR/etc/systemd/system
named=$(sed -n 's|^ExecStart=\(/.*\)/bin/gpuwhy .*|\1|p' "$units/gpuwhy.service" 2>/dev/null || true)
named=${named:-/opt/gpuwhy}
case ${prefix:=$named} in
  / | */ | *//* | */./* | */. | *..* | [!/]*) fail "--prefix $prefix: no absolute path, or with //, /./, .. or / at its end" "--prefix $named" 2 ;;
esac
place=$DESTDIR$prefix
# rm -r is for what install.sh made, whatever --prefix says.
if [ "$prefix" != "$named" ] && [ -e "$place" ] && [ ! -f "$place/pyvenv.cfg" ]; then
  fail "$place is no virtual environment with gpuwhy" "--prefix with the folder that it was installed into" 2
fi

running=''
if [ -z "$DESTDIR" ] && [ -d /run/systemd/system ]; then running=yes; fi
if [ -n "$running" ] && [ -e "$units/gpuwhy.service" ]; then do_ systemctl disable --quiet --no-reload --now gpuwhy.service; fi
do_ rm -f "$units/gpuwhy.service" "$DESTDIR/etc/sysusers.d/gpuwhy.conf"
for dropin in host-evidence.conf slurm.conf; do do_ rm -f "$units/gpuwhy.service.d/$dropin"; done
beside=$(dirname "$place")/.$(basename "$place").gpuwhy
do_ rm -rf "$beside-new" "$beside-old"
left=''
if [ -f "$place/pyvenv.cfg" ] && [ -e "$place/bin/gpuwhy" ]; then
  do_ rm -rf "$place"
elif [ -e "$place" ]; then
  left=$place
fi
link=$DESTDIR/usr/local/bin/gpuwhy
if [ "$(readlink "$link" || true)" = "$prefix/bin/gpuwhy" ]; then do_ rm -f "$link"; fi
if [ -n "$purge" ]; then
  do_ rm -rf "$units/gpuwhy.service.d" "$DESTDIR/etc/gpuwhy" "$DESTDIR/var/lib/gpuwhy"
  if [ -z "$DESTDIR" ] && getent passwd gpuwhy >/dev/null; then do_ userdel gpuwhy; fi
else
  if [ -d "$units/gpuwhy.service.d" ]; then do_ rmdir --ignore-fail-on-non-empty "$units/gpuwhy.service.d"; fi
  say "configuration, history and user stay; --purge removes them"
fi
if [ -n "$running" ]; then
  say "systemd reads its units again; containers that lose their GPUs by that want a restart (docs/systemd.md)"
  do_ systemctl daemon-reload
  do_ systemctl reset-failed gpuwhy.service 2>/dev/null || true
fi
if [ "$prefix" != "$named" ] && [ -e "$DESTDIR$named" ]; then say "$DESTDIR$named is there too, and stays"; fi
if [ -n "$left" ]; then fail "$left is no virtual environment with gpuwhy, and stays" "remove it yourself: rm -r $left"; fi
