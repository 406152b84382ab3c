# Runs in the guest: knfsd with its ports forwarded to the host, for as long as the host's client needs it.
. /run/out/guest/lib.sh
: >"$RESULTS"

serve() {
  mkdir -p /run/export; mount -t tmpfs -o size=2g export /run/export
  mkdir -p /run/export/given/tree
  tar xf /run/out/tree.tar -C /run/export/given/tree
  chmod 1777 /run/export
  siw
  knfsd /run/export
}

# Whatever the host's client wrote to by-*/tree is what the manifest says, and nothing else is there.
written_trees_are_whole() {
  local d seen=0
  for d in /run/export/by-*/tree; do
    (cd "$d" && sha256sum --quiet -c /run/out/manifest)
    equal "$(wc -l </run/out/manifest)" "$(find "$d" -type f | wc -l)"
    cmp "${d%/tree}/random" /run/out/random
    seen=$((seen + 1))
  done
  [ $seen -gt 0 ]
}

check "knfsd: starts" serve || exit 1
touch /run/out/ready
while [ ! -e /run/out/done ]; do sleep 0.5; done
check "knfsd: holds what our client wrote" written_trees_are_whole
check "knfsd: kernel log is clean" kernel_log_is_clean
! grep -q ^fail "$RESULTS"
