# Runs in the guest: knfsd with its ports forwarded to the host, while the host's client needs it. With LEASE_S and
# GRACE_S in /run/out/env it serves version 4: the export is an ext4, which supports all of that version, and the server
# restarts when /run/out/restart is created, with a grace period of GRACE_S; it creates /run/out/restarted afterwards. If
# /run/out/list-acls has the name of an exported directory, it writes the ACLs there, as xtask/src/interop/acls.rs
# compares them, to /run/out/acls.
. /run/out/guest/lib.sh
. /run/out/env
: >"$RESULTS"
near

serve() {
  mkdir -p /run/export
  if [ -n "${LEASE_S:-}" ]; then
    truncate -s 1G /run/disk; mkfs.ext4 -q -O ^has_journal /run/disk; mount -o loop /run/disk /run/export
    mount -t nfsd nfsd /proc/fs/nfsd
    echo "$LEASE_S" >/proc/fs/nfsd/nfsv4leasetime
  else
    mount -t tmpfs -o size=2g export /run/export
  fi
  mkdir -p /run/export/given/tree
  tar xf /run/out/tree.tar -C /run/export/given/tree
  chmod 1777 /run/export
  siw
  # NLM has a port that the host forwards. It accepts locks only while rpc.statd runs.
  echo 32803 >/proc/sys/fs/nfs/nlm_tcpport
  # No client has state to reclaim.
  grace 10
  knfsd /run/export
  rpc.statd --no-notify
}

# Sets the grace period of NLM and of version 4 in seconds, while the server does not run.
grace() {
  echo "$1" >/proc/sys/fs/nfs/nlm_grace_period
  if [ -n "${LEASE_S:-}" ]; then echo "$1" >/proc/fs/nfsd/nfsv4gracetime; fi
}

# Connections are cut, and the server forgets all state of clients except for their names.
restart() {
  rpc.nfsd 0
  equal 0 "$(cat /proc/fs/nfsd/threads)"
  grace "$GRACE_S"
  rpc.nfsd 4
  echo rdma 20049 >/proc/fs/nfsd/portlist
}

# The files that the host's client wrote to by-*/tree must match the manifest, completely or the part, without other
# files.
written_trees_are_whole() {
  local d wanted seen=0
  for d in /run/export/by-*/tree; do
    wanted=/run/out/manifest
    if [ "$(ls "$d")" = asm-generic ]; then grep ' asm-generic/' $wanted >/run/part; wanted=/run/part; fi
    (cd "$d" && sha256sum --quiet -c $wanted)
    equal "$(wc -l <$wanted)" "$(find "$d" -type f | wc -l)"
    cmp "${d%/tree}/random" /run/out/random
    seen=$((seen + 1))
  done
  [ $seen -gt 0 ]
}

check "knfsd: starts" serve; passed || exit 1
touch /run/out/ready
while [ ! -e /run/out/done ]; do
  if [ -e /run/out/restart ]; then
    rm /run/out/restart
    check "knfsd: restarts" restart
    touch /run/out/restarted
  fi
  if [ -e /run/out/list-acls ]; then
    read -r directory </run/out/list-acls
    rm /run/out/list-acls
    (cd "/run/export/$directory" && getfacl -Rcn .) | sed -E 's/:[rwx-]{3}[[:space:]]+#effective:/:/' >/run/out/acls.part
    mv /run/out/acls.part /run/out/acls
  fi
  sleep 0.5
done
check "knfsd: holds what our client wrote" written_trees_are_whole
# lockd warns when it stops while a client holds a lock by NLM, as it does at the restart.
check "knfsd: kernel log is clean" kernel_log_is_clean "lockd: couldn.t shutdown host module"
! grep -q ^fail "$RESULTS"
