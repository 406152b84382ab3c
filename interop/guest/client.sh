# Runs in the guest: the Linux kernel's NFS client against a server, over every transport of this kernel. /run/out/env
# has the address of the server, and MOUNTS: groups of mounts (of `one`, with commas between them) that are used at the same time.
# SERVER=knfsd makes the guest its own server, which tests the checks themselves.
. /run/out/guest/lib.sh
. /run/out/guest/content.sh
. /run/out/guest/version4.sh
. /run/out/env
near
: >"$RESULTS"
FILES=/run/out/manifest
IOSIZE=1048576

if [ "$SERVER" = knfsd ]; then
  # Uses the machine's other address, because the same kernel is both ends.
  SERVER=10.0.2.15 EXPORT=/run/export TCP_PORT=2049 UDP_PORT=20048 RDMA_PORT=20049 MOUNT_PORT=20048
  mkdir -p /run/export; mount -t tmpfs -o size=2g export /run/export
  mkdir -p /run/export/given/tree /run/export/given/many
  tar xf /run/out/tree.tar -C /run/export/given/tree
  (cd /run/export/given/many && touch $(seq -f 'entry-%g' 3000))
  siw
  knfsd /run/export
fi

squashed() {
  mkdir -p /run/mnt/squashed
  mount -t nfs -o "vers=3,nolock,proto=tcp,port=$TCP_PORT,mountport=$MOUNT_PORT,mountproto=tcp" "$SERVER:$SQUASHED" /run/mnt/squashed
  cd /run/mnt/squashed
  touch f; equal 65534:65534 "$(stat -c %u:%g f)"
  refused chown 0:0 f
  cd /; umount /run/mnt/squashed
}

# This kernel does not support NFS over UDP, but it does support MOUNT over UDP.
mount_by_udp() {
  mkdir -p /run/mnt/udp
  mount -t nfs -o "vers=3,nolock,proto=tcp,port=$TCP_PORT,mountport=$UDP_PORT,mountproto=udp" "$SERVER:$EXPORT" /run/mnt/udp
  ls /run/mnt/udp/given >/dev/null
  umount /run/mnt/udp
}

by_rpcbind() {
  mkdir -p /run/mnt/rpcbind
  mount -t nfs -o "vers=3,nolock,proto=tcp" "$SERVER:$EXPORT" /run/mnt/rpcbind
  ls /run/mnt/rpcbind/given >/dev/null
  umount /run/mnt/rpcbind
  rpcinfo -p "$SERVER" | grep -w 100003
}

# one MOUNT: every check on one mount. Version 4 needs neither MOUNT nor a separate lock manager. The newest version tests the whole tree.
one() {
  local version=${1#*-} tcp="proto=tcp,port=$TCP_PORT" rdma="proto=rdma,port=$RDMA_PORT" mount="mountport=$MOUNT_PORT,mountproto=tcp"
  case $1 in
    tcp) over tcp "$tcp,$mount" ;;
    rdma) over rdma "$rdma,$mount" ;;
    udp) IOSIZE=32768 over udp "proto=udp,port=$UDP_PORT,mountport=$UDP_PORT,mountproto=udp" ;;
    memory) EXPORT=$MEMORY EXPORT_BYTES= over memory "$tcp,$mount" ;;
    memory-4.2) EXPORT=$MEMORY EXPORT_BYTES= brief memory-4.2 "vers=4.2,$tcp,nconnect=4" several_connections ;;
    tcp-4.2) over tcp-4.2 "vers=4.2,$tcp" version42 ;;
    rdma-4.2) over rdma-4.2 "vers=4.2,$rdma" version42 ;;
    tcp-4.*) brief $1 "vers=$version,$tcp" version4 ;;
    rdma-4.*) brief $1 "vers=$version,$rdma" version4 ;;
    *) echo "fail $1: there is no such mount" >>/run/out/results.unknown ;;
  esac
}

check "rdma: siw device" siw
for group in $MOUNTS; do
  for mount in ${group//,/ }; do
    if [ $mount = udp ] && grep -q '^CONFIG_NFS_DISABLE_UDP_SUPPORT=y' /run/out/config; then
      skip "udp: kernel client" "this kernel is built with CONFIG_NFS_DISABLE_UDP_SUPPORT=y"
    else
      one $mount &
    fi
  done
  wait
done
if [ -n "${SQUASHED:-}" ]; then check "tcp: root is squashed by default" squashed; fi
check "udp: MOUNT" mount_by_udp
if [ -n "${RPCBIND:-}" ]; then
  check "tcp: mounts by rpcbind" by_rpcbind
else
  skip "tcp: mounts by rpcbind" "${NO_RPCBIND:-port 111 is not to be had on the host}"
fi
check "kernel log is clean" kernel_log_is_clean
cat /run/out/results.* >>"$RESULTS"
! grep -q ^fail "$RESULTS"
