# Shared by the scripts that run in the guest: named checks with one result line each, a knfsd, and the kernel's log.
# A result line is "ok NAME", "fail NAME: WHY" or "skip NAME: WHY", appended to $RESULTS.

RESULTS=${RESULTS:-/run/out/results}
# The console gets all messages of the kernel, such as the stack of a task that hangs. It is all that is left of a guest that is ended.
echo 7 >/proc/sys/kernel/printk

# near VARIABLE…: copies the suite's data and the programs in VARIABLEs into the guest's memory, because each access to
# a file of the host is expensive under emulation.
near() {
  local name
  mkdir -p /run/near
  for name in random tree.tar manifest guest; do
    cp -r "/run/out/$name" /run/near/
    mount --bind "/run/near/$name" "/run/out/$name"
  done
  for name; do
    cp "${!name}" /run/near/
    printf -v "$name" %s "/run/near/${!name##*/}"
  done
}

# check NAME COMMAND…: runs COMMAND in a subshell that stops at its first error, and records the result.
check() {
  local name=$1 log rc started=$SECONDS
  shift
  log=/run/out/logs/${name//[^A-Za-z0-9.]/-}.log
  mkdir -p /run/out/logs
  # In a condition, such as that of `if` or before `||`, bash ignores `set -e` in all functions and subshells, and nothing would fail.
  (set -e; false; true)
  if [ $? = 0 ]; then
    echo "fail $name: check is in a condition" >>"$RESULTS"
    CHECKED=1
    return 1
  fi
  (set -euo pipefail; trap 'echo "line $LINENO: $BASH_COMMAND: status $?" >&2' ERR; set -E; "$@") >"$log" 2>&1
  rc=$?
  if [ $rc = 0 ]; then
    echo "ok $name ($((SECONDS - started)) s)" >>"$RESULTS"
  else
    echo "fail $name: $(tail -n 3 "$log" | tr '\n' ' ')" >>"$RESULTS"
  fi
  CHECKED=$rc
}
# passed: whether the last check succeeded.
passed() { [ "$CHECKED" = 0 ]; }

skip() { echo "skip $1: $2" >>"$RESULTS"; }

# equal WANT HAVE: fails with a message unless they are the same.
equal() { [ "$1" = "$2" ] || { echo "want '$1', have '$2'" >&2; return 1; }; }

# refused COMMAND…: succeeds if COMMAND fails.
refused() { if "$@" 2>/dev/null; then echo "not refused: $*" >&2; return 1; fi; }

# knfsd DIR [OPTION]: exports DIR with the kernel's own server, over tcp (2049) and rdma on siw (20049), with MOUNT on 20048.
knfsd() {
  mkdir -p /var/lib/nfs/v4recovery /var/lib/nfs/sm /var/lib/nfs/sm.bak
  touch /var/lib/nfs/etab /var/lib/nfs/rmtab
  mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
  # Debian's settings replace a caller's groups by those in the server's own user database.
  rm -rf /etc/nfs.conf /etc/nfs.conf.d
  rpcbind -w
  exportfs -i -o rw,no_root_squash,insecure,no_subtree_check,fsid=0,sec=sys${2:+,$2} "*:$1"
  rpc.mountd -p 20048
  echo 1048576 >/proc/fs/nfsd/max_block_size
  rpc.nfsd 4
  # No client can have state to reclaim from a server that has never run, so the first open need not wait for 90 s.
  echo Y >/proc/fs/nfsd/v4_end_grace
  echo rdma 20049 >/proc/fs/nfsd/portlist
}

# await COMMAND…: repeats COMMAND until it succeeds, for at most ten minutes, because the machine can be slow. Starting
# a process is expensive here, and would slow down the processes that it waits for. So it waits by the shell's own
# `read`, from a pipe without a writer.
exec {NEVER}<> <(:)
await() {
  local until=$((SECONDS + 600))
  while [ $SECONDS -lt $until ]; do "$@" >/dev/null 2>&1 && return; read -rt 0.2 -u $NEVER || true; done
  echo "in vain: $*" >&2; return 1
}

# pnfs_export: makes the empty file system of a metadata server at $EXPORT, and the key of its cluster. On tmpfs, there are no extended
# attributes of users before Linux 6.6.
KEY=/run/cluster.key
pnfs_export() {
  truncate -s 64m /run/export.ext4
  mkfs.ext4 -q -b 4096 -E lazy_itable_init=1,lazy_journal_init=1 /run/export.ext4
  mount -o loop /run/export.ext4 "$EXPORT"
  (umask 077; head -c 32 /run/out/random | od -An -v -tx1 | tr -d ' \n' >$KEY)
}

# data_server_table N KIND VERSION AUTHORITY MOUNTPORT: prints the configuration of a data server with its objects in /run/dsN.
data_server_table() {
  cat <<T
[[pnfs.server]]
id = $1
kind = "$2"
version = "$3"
url = "nfs://$4/run/ds$1?mountport=$5"
T
}

siw() { rdma link | grep -q siw0 || rdma link add siw0 type siw netdev eth0; }

# Ignore the kernel's messages from booting under emulation.
WARNINGS='emerg,alert,crit,err,warn'
WARNINGS_OF_BOOT=$(dmesg -l $WARNINGS | wc -l)

# kernel_log_is_clean [EXPECTED]: there must be no error or warning since then, except for those about the emulated
# machine's clock and speed, knfsd's own about its state directory, and those that the suite causes.
kernel_log_is_clean() {
  local benign='speed is unknown|clocksource|hrtimer: interrupt took|perf: interrupt took|state recovery directory'"${1:+|$1}"
  dmesg >/run/out/dmesg
  dmesg -l $WARNINGS | tail -n +$((WARNINGS_OF_BOOT + 1)) >/run/out/dmesg.warnings
  if grep -vE "$benign" /run/out/dmesg.warnings >&2; then return 1; fi
}
