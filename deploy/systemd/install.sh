#!/bin/sh
# Installs gpuwhy as a service of this host, or brings an installed one up to date; --help says more.
set -eu
umask 022
# The caller's own settings would put gpuwhy elsewhere, or nowhere, or hide that a library is missing.
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE PYTHONPLATLIBDIR
unset PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER PIP_DRY_RUN PIP_REQUIRE_VIRTUALENV PIP_PYTHON PIP_IGNORE_INSTALLED PIP_NO_DEPS
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)

usage() {
  cat <<'END'
usage: install.sh [options]

Makes a virtual environment, the user gpuwhy, a unit, and a configuration where there is none; then starts the unit.
Run it again to upgrade: configuration and history stay, and what fails leaves the old version in place.

  --from WHAT        wheel, source archive or source tree to install  [the tree that this script is in]
  --prefix DIR       where the virtual environment goes  [/opt/gpuwhy]
  --extras LIST      extras to install with it, or ''; report,kubernetes where a kubelet runs  [report]
  --host-evidence    also install the drop-in that lets it read other users' process I/O (docs/systemd.md)
  --slurm            also install the drop-in for compute nodes of Slurm
  --no-start         neither enable nor start the unit, nor have systemd read it
  --dry-run          say what would be done, and do nothing
  -h, --help         say this

Environment: PYTHON names the Python to use (3.10 or later), DESTDIR a folder to stage the files in, where no root is
needed and nothing is started. pip's own (PIP_INDEX_URL, PIP_FIND_LINKS, PIP_NO_INDEX) say where libraries come from.
END
}

say() { printf 'gpuwhy: %s\n' "$*"; }
fail() {
  printf 'gpuwhy: %s\n' "$1" >&2
  if [ -n "${2:-}" ]; then printf '  remedy: %s\n' "$2" >&2; fi
  exit "${3:-1}"
}
do_() {
  if [ -n "$dry" ]; then say "would run: $*"; else "$@"; fi
}

from=$(dirname -- "$(dirname -- "$here")") prefix=/opt/gpuwhy extras=report
dropins='' start=yes dry='' DESTDIR=${DESTDIR:-}
while [ $# -gt 0 ]; do
  case $1 in
    --from | --prefix | --extras)
      [ $# -ge 2 ] || fail "$1 wants a value" "install.sh --help" 2
      case $1 in
        --from) from=$2 ;;
        --prefix) prefix=$2 ;;
        --extras) extras=$2 ;;
      esac
      shift
      ;;
    --host-evidence) dropins="$dropins gpuwhy.service.d/host-evidence.conf" ;;
    --slurm) dropins="$dropins gpuwhy.service.d/slurm.conf" ;;
    --no-start) start='' ;;
    --dry-run) dry=yes ;;
    -h | --help) usage && exit 0 ;;
    *) fail "$1: no such option" "install.sh --help" 2 ;;
  esac
  shift
done
# Folders of / that ProtectHome= hides from the unit.
hidden="home root run/user"
case $prefix in
  / | */ | *//* | */./* | */. | *[!A-Za-z0-9/._-]* | *..*)
    fail "--prefix $prefix: letters, digits and /._- only, no //, /./ and .., and no / at its end" "--prefix /opt/gpuwhy" 2
    ;;
  /*) ;;
  *) fail "--prefix $prefix: no absolute path" "--prefix /opt/gpuwhy" 2 ;;
esac
for folder in $hidden; do
  case $prefix in "/$folder"/*) fail "--prefix $prefix: the unit sees no home folders" "--prefix /opt/gpuwhy" 2 ;; esac
done
case $DESTDIR in
  '' | /*) ;;
  *) fail "DESTDIR=$DESTDIR: no absolute path" "DESTDIR=\$PWD/$DESTDIR" 2 ;;
esac
[ -e "$from" ] || fail "--from $from: no such file or folder" "a wheel, a source archive or a source tree" 2
case $from in /*) ;; *) from=$PWD/$from ;; esac
[ -n "$DESTDIR$dry" ] || [ "$(id -u)" -eq 0 ] || fail "not root" "sudo $0, or --dry-run to see what it does"

# The unit does not see a Python in a home folder, as a version manager keeps it: to stage, one that was named will do.
find_python() {
  for name in ${PYTHON:-python3.13 python3.12 python3.11 python3.10 python3 /usr/bin/python3}; do
    path=$(command -v "$name") || continue
    code=0
    # shellcheck disable=SC2086  # a list of folders
    "$path" -I - $hidden 2>/dev/null <<'END' || code=$?
import ensurepip, os.path, sys, venv
hidden = os.path.realpath(sys.base_prefix).startswith(tuple(f"/{folder}/" for folder in sys.argv[1:]))
sys.exit(1 if sys.version_info < (3, 10) else 3 if hidden else 0)
END
    if [ "$code" -eq 3 ] && [ -n "${PYTHON:-}" ] && [ -n "$DESTDIR" ]; then
      say "warning: PYTHON=$PYTHON is in a home folder, where the unit cannot start it" >&2
      code=0
    fi
    [ "$code" -eq 0 ] || continue
    printf '%s\n' "$path"
    return
  done
  return 1
}
python=$(find_python) || fail "no Python 3.10 or later with its venv module${PYTHON:+ is PYTHON=$PYTHON}, outside of home folders" \
  "apt-get install python3-venv, or dnf install python3.11, or PYTHON=/path/to/python3"

place=$DESTDIR$prefix
config=$DESTDIR/etc/gpuwhy/config.yaml
units=$DESTDIR/etc/systemd/system
[ ! -e "$place" ] || [ -f "$place/pyvenv.cfg" ] || fail "$place is there and is no virtual environment" "--prefix with another folder"

# 1. The new version, beside the old one, under names that nobody else has.
say "installing into $place with $python, $("$python" --version)"
beside=$(dirname "$place")
fresh=$beside/.$(basename "$place").gpuwhy-new
old=$beside/.$(basename "$place").gpuwhy-old
do_ mkdir -p "$beside"
if [ -z "$dry" ] && command -v flock >/dev/null; then
  exec 9<"$beside"
  code=0
  flock --nonblock --conflict-exit-code 75 9 || code=$?
  [ "$code" -ne 75 ] || fail "another install.sh is at work in $beside" "wait for its end"
fi
# One that was killed between the two moves left the old version there alone.
if [ ! -e "$place" ] && [ -e "$old" ]; then do_ mv "$old" "$place"; fi
do_ rm -rf "$fresh" "$old"
if [ -z "$dry" ]; then
  trap 'rm -rf "$fresh"' EXIT
  trap 'exit 1' HUP INT TERM
fi
do_ "$python" -I -m venv --prompt gpuwhy "$fresh"
do_ "$fresh/bin/python" -I -m pip --disable-pip-version-check --quiet --no-cache-dir install "$from${extras:+[$extras]}" || fail \
  "pip could not install it (its reason is above); what was there before is as it was" \
  "a package index (PIP_INDEX_URL, HTTPS_PROXY), or a folder of wheels (PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER)"
as_the_unit() { env -i PATH=/usr/local/bin:/usr/bin:/bin LC_ALL=C.UTF-8 "$fresh/bin/python" -I -m gpuwhy "$@"; }
if [ -z "$dry" ]; then
  if [ ! -x "$fresh/bin/gpuwhy" ] || ! as_the_unit --version >/dev/null; then
    fail "what pip installed does not start; what was there before is as it was" \
      "pip's settings for this host, which \`$python -m pip config list\` shows"
  fi
fi
if [ -f "$config" ]; then
  if [ -n "$dry" ]; then
    say "would ask the new version whether it takes $config"
  else
    as_the_unit check-config --config "$config" >/dev/null || fail \
      "the new version does not take $config (its reason is above); nothing was changed" "mend it and run this again"
  fi
fi

# Scripts of an environment carry its path, which is another one from here on.
settle() {
  grep -lIFr -- "$fresh" "$fresh/bin" "$fresh/pyvenv.cfg" | while IFS= read -r file; do
    sed -i "s|$(printf '%s' "$fresh" | sed 's/[.|[\*^$]/\\&/g')|$prefix|g" "$file"
  done
  trap '' HUP INT TERM # between the two there is no version
  if [ -e "$place" ]; then mv "$place" "$old"; fi
  mv "$fresh" "$place"
  trap - HUP INT TERM
  rm -rf "$old"
}
if [ -n "$dry" ]; then say "would move $fresh to $place, in place of what is there"; else settle; fi

# 2. Unit, user, configuration.
put() { do_ install -D -m "$1" "$2" "$3"; }
changed=''
for name in gpuwhy.service $dropins; do
  if sed "s|/opt/gpuwhy|$prefix|g" "$here/$name" | cmp -s - "$units/$name"; then
    say "$units/$name: is as it should be"
  elif [ -n "$dry" ]; then
    changed=yes
    say "would write $units/$name"
  else
    changed=yes
    install -D -m 0644 "$here/$name" "$units/$name"
    sed -i "s|/opt/gpuwhy|$prefix|g" "$units/$name"
  fi
done
put 0644 "$here/sysusers.conf" "$DESTDIR/etc/sysusers.d/gpuwhy.conf"
if [ -f "$config" ]; then
  say "$config: kept as it is"
else
  put 0644 "$here/config.yaml" "$config"
fi
link=$DESTDIR/usr/local/bin/gpuwhy
if [ -L "$link" ] || [ ! -e "$link" ]; then
  do_ mkdir -p "$(dirname "$link")"
  do_ ln -sfn "$prefix/bin/gpuwhy" "$link"
else
  say "$link is something else and stays; the program is $prefix/bin/gpuwhy"
fi

finish() {
  say "${dry:+a dry run, nothing was done; it would end with: }$1"
  exit 0
}
if [ -n "$DESTDIR" ]; then
  finish "staged in $DESTDIR"
fi
if ! getent passwd gpuwhy >/dev/null; then
  if command -v systemd-sysusers >/dev/null; then
    do_ systemd-sysusers /etc/sysusers.d/gpuwhy.conf
  else
    do_ useradd --system --user-group --no-create-home --home-dir / --shell /usr/sbin/nologin gpuwhy
  fi
fi
if command -v restorecon >/dev/null; then do_ restorecon -R "$prefix" "$units/gpuwhy.service" /etc/gpuwhy; fi

# 3. Start.
if [ ! -d /run/systemd/system ]; then
  finish "systemd does not run here: installed, not started"
fi
if [ -z "$start" ]; then
  finish "installed, not started:  systemctl daemon-reload && systemctl enable --now gpuwhy"
fi
# A reload can take the GPUs from containers (docs/systemd.md), so there is none without need.
do_ systemctl enable --quiet --no-reload gpuwhy.service
if [ -n "$changed" ] || [ "$(systemctl show --property NeedDaemonReload --value gpuwhy.service)" = yes ]; then
  say "systemd reads its units again; containers that lose their GPUs by that want a restart (docs/systemd.md)"
  do_ systemctl daemon-reload
fi
do_ systemctl restart gpuwhy.service || fail "installed, but it does not start" "journalctl -u gpuwhy -n 20 says why"
finish "runs:  systemctl status gpuwhy, and http://127.0.0.1:9837/ unless the configuration says otherwise"
