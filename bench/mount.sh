#!/usr/bin/env bash
# mount.sh SLIPWAY [ROUNDS]: compares `slipway mount` with the tmpfs that its server exports, in one run.
#
# Each round runs the same programs on the tmpfs, and on mounts of it over the transports (TRANSPORTS, default "tcp shm")
# with one version of NFS (VERSION, default 4.2). "passed" is a transport as well: shm, with --passthrough. OPTIONS are options of `slipway mount`, FILES is the number of small
# files of the archive, and SECONDS_EACH the time of each measurement by fio. Prints a table in Markdown with the median
# of the rounds. Everything runs in a network namespace. Needs root, fio, git and python3. `cargo xtask compare --mount`
# installs these, makes a release build, and runs this.
set -euo pipefail

slipway=$(realpath "${1:?usage: mount.sh SLIPWAY [ROUNDS]}")
rounds=${2:-3}
transports=${TRANSPORTS:-tcp shm}
files=${FILES:-9000}

[ "$(id -u)" = 0 ] || { echo "mount.sh: must be root, for a network namespace and mounts" >&2; exit 1; }
[ -n "${IN_NAMESPACE:-}" ] || IN_NAMESPACE=1 exec unshare --net --mount "${BASH_SOURCE[0]}" "$slipway" "$rounds"

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
work=$(mktemp -d)
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
mkdir "$work/export" "$work/state" "$work/mnt" "$work/source"
mount -t tmpfs -o size=3g tmpfs "$work/export"
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null HOME=$work

# The archive: small files of 0 to 16 KiB in directories of 50, like the sources of a program.
python3 - "$work/source" "$files" <<'P'
import os, random, sys
top, files = sys.argv[1], int(sys.argv[2])
source = random.Random(1)
for number in range(files):
    directory = f"{top}/tree/{number // 500}/{number // 50}"
    if number % 50 == 0:
        os.makedirs(directory)
    with open(f"{directory}/file-{number}.c", "wb") as file:
        file.write(source.randbytes(source.choice([100, 700, 2000, 4000, 9000, 16000])))
P
tar -cf "$work/tree.tar" -C "$work/source" tree
git -C "$work/source" init -q
git -C "$work/source" -c user.name=a -c user.email=a@example add tree
git -C "$work/source" -c user.name=a -c user.email=a@example commit -qm all
rm -rf "$work/source/tree"

"$slipway" serve "$work/export" --name /export --squash none --passthrough --state-dir "$work/state" --rpcbind off \
  --listen tcp://127.0.0.1:20490 --listen shm://127.0.0.1:20490 >"$work/serve.log" 2>&1 & children+=($!)
server=$!
for _ in {1..200}; do if ss -ltn | grep -q :20490 || ! kill -0 "$server"; then break; fi; sleep 0.05; done
kill -0 "$server" || { cat "$work/serve.log" >&2; exit 1; }

# Seconds of processor time of the server and the mount.
cpu() { cat /proc/"$server"/stat ${mounted:+/proc/$mounted/stat} | awk '{ sum += $14 + $15 } END { print sum / 100 }'; }
# sample NAME COLUMN UNIT COUNT COMMAND: runs the command; the sample is COUNT a second, or the seconds if COUNT is 0.
sample() {
  local name=$1 column=$2 count=$3 before after start end
  shift 3
  before=$(cpu) start=$(date +%s.%N)
  "$@" >"$work/out" 2>&1 || { echo "mount.sh: $column: $name failed: $(tail -1 "$work/out")" >&2; exit 1; }
  end=$(date +%s.%N) after=$(cpu)
  printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$column" "$count" "$(python3 -c "print($end - $start)")" \
    "$(python3 -c "print($after - $before)")" >>"$work/samples"
}
fio_job() { fio --name=job --filename="$1" --size=256m --time_based --runtime="${SECONDS_EACH:-2}" --output-format=json --output="$work/fio" "${@:2}"; }
fio_sample() {
  local name=$1 column=$2 before after
  before=$(cpu)
  fio_job "${@:3}"
  after=$(cpu)
  python3 - "$work/fio" "$name" "$column" "$before" "$after" >>"$work/samples" <<'P'
import json, sys
path, name, column, before, after = sys.argv[1:]
job = json.load(open(path))["jobs"][0]["read"]
work = job["io_bytes"] if "MiB" in name else job["total_ios"]
print(name, column, work, job["runtime"] / 1000, float(after) - float(before), sep="\t")
P
}
fresh() { if [ "$2" != tmpfs ]; then stop_mount; start_mount "$2"; fi; }
start_mount() {
  local transport=$1 passthrough=
  if [ "$1" = passed ]; then transport=shm passthrough=--passthrough; fi
  "$slipway" mount "nfs://127.0.0.1:20490/export?vers=${VERSION:-4.2}&proto=$transport" "$work/mnt" $passthrough ${OPTIONS:-} \
    >"$work/mount.log" 2>&1 &
  mounted=$!
  for _ in {1..200}; do if mountpoint -q "$work/mnt"; then break; fi; sleep 0.05; done
  if grep -q 'passthrough has no effect' "$work/mount.log"; then cat "$work/mount.log" >&2; exit 1; fi
  if mountpoint -q "$work/mnt"; then return; fi
  echo "mount.sh: $1 cannot be mounted: $(tail -1 "$work/mount.log")" >&2
  exit 1
}
stop_mount() {
  if [ -n "${mounted:-}" ]; then kill "$mounted"; wait "$mounted" || true; mounted=; fi
}
create() { python3 -c '
import os, sys
for number in range(int(sys.argv[2])):
    os.close(os.open(f"{sys.argv[1]}/{number}", os.O_CREAT | os.O_WRONLY))
' "$1" "$2"; }

measure() {
  local column=$1 at=$2
  mkdir "$at/d" "$at/d/many"
  sample "dd bs=4k, write" "$column" 268435456 dd if=/dev/zero of="$at/d/dd" bs=4k count=65536
  fresh "$at" "$column"
  sample "dd bs=4k, read" "$column" 268435456 dd if="$at/d/dd" of=/dev/null bs=4k
  fresh "$at" "$column"
  sample "cat of 256 MiB" "$column" 268435456 cat "$at/d/dd"
  fio_sample "1 MiB READs, direct" "$column" "$at/d/dd" --rw=read --bs=1m --direct=1 --ioengine=psync
  fio_sample "random 4 KiB, psync" "$column" "$at/d/dd" --rw=randread --bs=4k --direct=1 --ioengine=psync
  fio_sample "random 4 KiB, libaio × 16" "$column" "$at/d/dd" --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=16
  sample "untar of $files files" "$column" 0 tar -xf "$work/tree.tar" -C "$at/d"
  fresh "$at" "$column"
  sample "ls -lR of these" "$column" 0 ls -lR "$at/d/tree"
  sample "git clone" "$column" 0 git clone -q --no-local "$work/source" "$at/d/clone"
  sample "git status" "$column" 0 git -C "$at/d/clone" status
  sample "20,000 creates" "$column" 20000 create "$at/d/many" 20000
  if [ "$column" != tmpfs ]; then
    printf 'memory of slipway mount after this\t%s\t0\t%s\t0\n' "$column" "$(awk '/VmRSS/ { print $2 / 1024 }' /proc/"$mounted"/status)" >>"$work/samples"
  fi
  sample "rm -r of all" "$column" 0 rm -r "$at/d"
}

for _ in $(seq "$rounds"); do
  mounted=
  measure tmpfs "$work/export"
  for transport in $transports; do
    start_mount "$transport"
    measure "$transport" "$work/mnt"
    stop_mount
  done
done
cp "$work/samples" "${SAMPLES:-/dev/null}"
python3 "$here/table.py" mount "$work/samples"
