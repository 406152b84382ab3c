# The programs with which bench/mount.sh (on the host) and interop/guest/mount.sh (in the lab's guest) measure a mount.
#
# The script that sources this sets `work` (a directory), FILES, MIB, CREATES and SECONDS_EACH. It defines `cpu` (prints
# seconds of processor time), `is_local COLUMN`, and `start_mount COLUMN` and `stop_mount` of $work/mnt. Each line of
# $work/samples has a name, a column, an amount of work (0: the time is the result), seconds, and seconds of processor time.

export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null HOME=$work

# The archive and the repository: small files of 0 to 16 KiB in directories of 50, like the sources of a program.
prepare() {
  mkdir -p "$work/source"
  python3 - "$work/source" "$FILES" <<'P'
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
}

# minus ONE OTHER: their difference.
minus() { awk -v one="$1" -v other="$2" 'BEGIN { printf "%.6f", one - other }'; }

# sample NAME COLUMN COUNT COMMAND…: runs the command; the sample is COUNT a second, or the seconds if COUNT is 0.
sample() {
  local name=$1 column=$2 count=$3 before after start end
  shift 3
  before=$(cpu) start=$(date +%s.%N)
  "$@" >"$work/out" 2>&1 || { echo "$column: $name failed: $(tail -1 "$work/out")" >&2; exit 1; }
  end=$(date +%s.%N) after=$(cpu)
  printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$column" "$count" "$(minus "$end" "$start")" "$(minus "$after" "$before")" >>"$work/samples"
}

# fio_sample NAME COLUMN FILE OPTION…: the bytes a second of a name with MiB, and otherwise the operations.
fio_sample() {
  local name=$1 column=$2 file=$3 before after
  shift 3
  before=$(cpu)
  fio --name=job --filename="$file" --size="${MIB}m" --time_based --runtime="$SECONDS_EACH" --direct=1 --minimal \
    --output="$work/fio" "$@" || { echo "$column: $name failed: $(tail -1 "$work/fio")" >&2; exit 1; }
  after=$(cpu)
  # Fields of fio's terse format 3, of reads and of writes: KiB, KiB/s, operations a second, milliseconds.
  awk -F';' -v name="$name" -v column="$column" -v cpu="$(minus "$after" "$before")" '
    /^3;/ {
      at = $6 > 0 ? 6 : 47
      seconds = $(at + 3) / 1000
      printf "%s\t%s\t%.0f\t%.3f\t%s\n", name, column, name ~ /MiB/ ? $at * 1024 : $(at + 2) * seconds, seconds, cpu
      found = 1
    }
    END { exit !found }' "$work/fio" >>"$work/samples"
}

# create DIRECTORY COUNT: without a process for each file.
create() { local number; for ((number = 0; number < $2; number++)); do : >"$1/$number"; done; }

# Mounts again, so that nothing is cached by the client.
fresh() { if ! is_local "$1"; then stop_mount; start_mount "$1"; fi; }

# measure COLUMN DIRECTORY: runs all programs in the directory.
measure() {
  local column=$1 at=$2
  mkdir "$at/d" "$at/d/many"
  sample "dd bs=4k, write" "$column" $((MIB << 20)) dd if=/dev/zero of="$at/d/dd" bs=4k count=$((MIB << 8))
  fresh "$column"
  sample "dd bs=4k, read" "$column" $((MIB << 20)) dd if="$at/d/dd" of=/dev/null bs=4k
  fresh "$column"
  sample "cat of $MIB MiB" "$column" $((MIB << 20)) cat "$at/d/dd"
  fio_sample "1 MiB READs, direct" "$column" "$at/d/dd" --rw=read --bs=1m --ioengine=psync
  fio_sample "1 MiB WRITEs, direct" "$column" "$at/d/dd" --rw=write --bs=1m --ioengine=psync
  fio_sample "random 4 KiB, psync" "$column" "$at/d/dd" --rw=randread --bs=4k --ioengine=psync
  fio_sample "random 4 KiB, libaio × 16" "$column" "$at/d/dd" --rw=randread --bs=4k --ioengine=libaio --iodepth=16
  sample "untar of $FILES files" "$column" 0 tar -xf "$work/tree.tar" -C "$at/d"
  fresh "$column"
  sample "ls -lR of these" "$column" 0 ls -lR "$at/d/tree"
  sample "git clone" "$column" 0 git clone -q --no-local "$work/source" "$at/d/clone"
  sample "git status" "$column" 0 git -C "$at/d/clone" status
  sample "$CREATES creates" "$column" "$CREATES" create "$at/d/many" "$CREATES"
  if [ -n "${mounted:-}" ]; then
    printf 'memory of slipway mount after this\t%s\t0\t%s\t0\n' "$column" "$(awk '/VmRSS/ { print $2 / 1024 }' /proc/"$mounted"/status)" >>"$work/samples"
  fi
  sample "rm -r of all" "$column" 0 rm -r "$at/d"
}

# measure_messages COLUMN DIRECTORY: runs the programs of which each system call is a message of FUSE.
measure_messages() {
  local column=$1 at=$2
  mkdir "$at/d" "$at/d/many"
  sample "dd bs=4k, write" "$column" $((MIB << 20)) dd if=/dev/zero of="$at/d/dd" bs=4k count=$((MIB << 8))
  sample "untar of $FILES files" "$column" 0 tar -xf "$work/tree.tar" -C "$at/d"
  sample "$CREATES creates" "$column" "$CREATES" create "$at/d/many" "$CREATES"
  rm -r "$at/d"
}
