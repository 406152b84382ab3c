#!/usr/bin/env bash
# mount.sh SLIPWAY [ROUNDS]: compares `slipway mount` with the tmpfs that its server exports, in one run.
#
# Each round runs the same programs (programs.sh) on the tmpfs, and on mounts of it over the transports (TRANSPORTS, default
# "tcp rdma shm") with one version of NFS (VERSION, default 4.2). The transport "passed" is shm with --passthrough. OPTIONS are
# options of `slipway mount`, FILES is the number of small files of the archive, MIB the size of the large file, CREATES the number of created files, and SECONDS_EACH the time
# of each measurement by fio. FLOOR is the program floor_mount, whose column shows what any FUSE file system can reach. Prints a
# table in Markdown with the median of the rounds. Everything runs in a network namespace. Needs root, fio, git and python3.
# `cargo xtask compare --mount` installs these, makes a release build, and runs this.
set -euo pipefail

slipway=$(realpath "${1:?usage: mount.sh SLIPWAY [ROUNDS]}")
rounds=${2:-3}
transports=${TRANSPORTS:-tcp rdma shm}
FILES=${FILES:-9000} MIB=${MIB:-256} CREATES=${CREATES:-20000} SECONDS_EACH=${SECONDS_EACH:-2}

[ "$(id -u)" = 0 ] || { echo "mount.sh: must be root, for a network namespace and mounts" >&2; exit 1; }
[ -n "${IN_NAMESPACE:-}" ] || IN_NAMESPACE=1 exec unshare --net --mount "${BASH_SOURCE[0]}" "$slipway" "$rounds"

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
work=$(mktemp -d)
. "$here/programs.sh"
children=()
cleanup() {
  for child in "${children[@]}"; do kill "$child" 2>/dev/null || true; done
  wait || true
  umount -l "$work"/mnt 2>/dev/null || true
  umount "$work/export" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
ip link set lo up
mkdir "$work/export" "$work/state" "$work/mnt"
mount -t tmpfs -o size=3g tmpfs "$work/export"
prepare

"$slipway" serve "$work/export" --name /export --squash none --passthrough --state-dir "$work/state" --rpcbind off \
  --listen tcp://127.0.0.1:20490 --listen rdma://127.0.0.1:20491 --listen shm://127.0.0.1:20490 >"$work/serve.log" 2>&1 & children+=($!)
server=$!
for _ in {1..200}; do if ss -ltn | grep -q :20490 || ! kill -0 "$server"; then break; fi; sleep 0.05; done
kill -0 "$server" || { cat "$work/serve.log" >&2; exit 1; }

# The processor time of the server and the mount.
cpu() { cat /proc/"$server"/stat ${mounted:+/proc/$mounted/stat} | awk '{ sum += $14 + $15 } END { print sum / 100 }'; }
is_local() { [ "$1" = tmpfs ]; }
start_mount() {
  local transport=$1 port=20490 passthrough=
  case $1 in
    rdma) port=20491 ;;
    passed) transport=shm passthrough=--passthrough ;;
  esac
  "$slipway" mount "nfs://127.0.0.1:$port/export?vers=${VERSION:-4.2}&proto=$transport" "$work/mnt" $passthrough ${OPTIONS:-} \
    >"$work/mount.log" 2>&1 &
  mounted=$!
  for _ in {1..200}; do if mountpoint -q "$work/mnt"; then break; fi; sleep 0.05; done
  if grep -q 'passthrough has no effect' "$work/mount.log"; then cat "$work/mount.log" >&2; exit 1; fi
  if mountpoint -q "$work/mnt"; then return; fi
  echo "mount.sh: $1 cannot be mounted: $(tail -1 "$work/mount.log")" >&2
  exit 1
}
start_floor() {
  "$FLOOR" "$work/mnt" >"$work/mount.log" 2>&1 &
  mounted=$!
  for _ in {1..200}; do if mountpoint -q "$work/mnt"; then return; fi; sleep 0.05; done
  echo "mount.sh: the floor cannot be mounted: $(tail -1 "$work/mount.log")" >&2
  exit 1
}
stop_mount() {
  if [ -n "${mounted:-}" ]; then kill "$mounted"; wait "$mounted" || true; mounted=; fi
}

for _ in $(seq "$rounds"); do
  mounted=
  measure tmpfs "$work/export"
  if [ -n "${FLOOR:-}" ]; then
    start_floor
    measure_messages floor "$work/mnt"
    umount "$work/mnt"
    wait "$mounted"
    mounted=
  fi
  for transport in $transports; do
    start_mount "$transport"
    measure "$transport" "$work/mnt"
    stop_mount
  done
done
cp "$work/samples" "${SAMPLES:-/dev/null}"
python3 "$here/table.py" mount "$work/samples"
