# Runs in the guest: the checks of every mount (content.sh, version4.sh) with files whose data are on data servers. Two Linux clients use
# the cluster of pnfs_lib.sh: the guest itself, and one that has a host name and a network of its own, in which there is only TCP.
# Files have copies on all three data servers and then, with files layouts, one copy that is striped over two of them. Clients without
# layouts use version 3. /run/out/env sets SLIPWAY and KIND.
. /run/out/guest/pnfs_lib.sh
. /run/out/guest/content.sh
. /run/out/guest/version4.sh
FILES=/run/few TREE=/run/few.tar BRIEF=1 IOSIZE=1048576 HOLES_ARE_DATA=1
# Some of the files of the tree are longer, and some are not.
THRESHOLD=1024

given() {
  mkdir -p /run/mnt/given/tree
  tar xf $TREE -C /run/mnt/given/tree
  umount /run/mnt
}

# two_mounts OPTIONS: $M, and $M2 at the other client, which sees each other's writes at once.
two_mounts() {
  mkdir -p $M $M2
  local options="rsize=$IOSIZE,wsize=$IOSIZE,${1%%,*}"
  mount -t nfs -o "rsize=$IOSIZE,wsize=$IOSIZE,$1" $SERVER:/export $M
  case $1 in
    vers=3*) options+=,nolock,proto=tcp,port=${PORT[0]},mountport=${PORT[0]},mountproto=tcp ;;
    *) options+=,proto=tcp ;;
  esac
  $IN_SERVER unshare --uts bash -c "hostname other; mount -t nfs -o $options,actimeo=0 $SERVER:/export $M2"
}

# written_at_data_servers: the number of WRITEs of everybody at the first two data servers.
written_at_data_servers() { cat /run/out/serve.[12].log | grep -cE '(procedure|operation)="WRITE"' || true; }
data_are_at_data_servers() { [ "$(written_at_data_servers)" -gt "$1" ]; }

# emptied: the files are removed, and their objects, too. Those of the given tree stay.
emptied() {
  cd /
  rm -rf "${M:?}/$HERE"
  umount $M $M2
  await only_given
}
only_given() {
  local server
  for server in 1 2; do [ "$(ls /run/ds$server | wc -l)" -le "$(wc -l <$FILES)" ] || return 1; done
}

# all_checks NAME OPTIONS [CHECKS]
all_checks() {
  local on=$1 former
  M=/run/mnt M2=/run/other HERE=$((++ROUNDS))
  check "$on: two clients mount" two_mounts "$2"; passed || return
  former=$(written_at_data_servers)
  # The checks name the export as clients do.
  (EXPORT=/export; content "$on"; ${3:-:} "$on")
  check "$on: data are at data servers" data_are_at_data_servers "$former"
  check "$on: objects of removed files are removed" emptied
}
ROUNDS=0

# configured LAYOUTS
configured() {
  stop 0
  if [ $1 = files ]; then configure_files; else configure 3 4.1 4.2; fi
  echo "threshold = \"$THRESHOLD\"" >/run/threshold
  # Before the first data server, which begins a table of its own.
  sed -i '/^mirrors/r /run/threshold' /run/slipway.toml
  start 0
}

check "network" network; passed || exit 1
check "knfsd: starts" knfsd_data_server; passed || exit 1
OPTIONS=--data-server
check "slipway serve: starts" servers; passed || exit 1
MIRRORS=3
check "three copies: metadata server starts" configured flexible; passed || exit 1
check "three copies: mounts with flexible files" mounted 4.2; passed || exit 1
check "three copies: a tree is written" given; passed || exit 1
all_checks "4.2, three copies" vers=4.2,proto=tcp version42
all_checks "4.1, three copies, over rdma" vers=4.1,$RDMA version4
all_checks "3, without layouts" vers=3,nolock,proto=tcp,port=${PORT[0]},mountport=${PORT[0]},mountproto=tcp
check "stripes: metadata server starts" configured files; passed || exit 1
all_checks "4.1, stripes" vers=4.1,proto=tcp version4
all_checks "4.2, stripes, over rdma" vers=4.2,$RDMA version42
check "kernel log is clean" kernel_log_is_clean
! grep -q ^fail "$RESULTS"
