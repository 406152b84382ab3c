# Runs in the guest: the kernel's NFS client and `slipway mount` of one server, with the same programs in turn. The server is
# `slipway serve` with a tmpfs; the kernel's client uses it over tcp and over rdma (siw), and ours over tcp, rdma (iWARP in
# software) and shm, all with version 4.2. SLIPWAY, FILES, MIB, CREATES, SECONDS_EACH, ROUNDS and OPTIONS (of `slipway mount`) are in
# /run/out/env. Writes /run/out/samples, in the format of bench/programs.sh.
. /run/out/guest/lib.sh
. /run/out/env
: >"$RESULTS"
mkdir -p /run/near /run/work/export /run/work/state /run/work/mnt
cp "$SLIPWAY" /run/near/slipway
PATH=/run/near:$PATH
work=/run/work mounted=
. /run/out/bench/programs.sh

SERVER=10.0.2.15 TCP_PORT=2049 RDMA_PORT=20049

serve() {
  mount -t tmpfs -o size=1g export /run/work/export
  slipway serve /run/work/export --name /export --squash none --state-dir /run/work/state --rpcbind off --listen "tcp://$SERVER:$TCP_PORT" \
    --listen "rdma://$SERVER:$RDMA_PORT" --listen "shm://$SERVER:$TCP_PORT" --ready-file /run/ready >/run/out/logs/serve.log 2>&1 &
  await test -s /run/ready
}

# The processor time of the whole guest: the kernel's client has no process of its own.
cpu() { awk '/^cpu / { print ($2 + $3 + $4 + $7 + $8) / 100; exit }' /proc/stat; }
is_local() { false; }
start_mount() {
  case $1 in
    "kernel tcp") mount -t nfs -o "vers=4.2,proto=tcp,port=$TCP_PORT" "$SERVER:/export" "$work/mnt" ;;
    "kernel rdma") mount -t nfs -o "vers=4.2,proto=rdma,port=$RDMA_PORT" "$SERVER:/export" "$work/mnt" ;;
    *)
      local port=$TCP_PORT
      if [ "$1" = rdma ]; then port=$RDMA_PORT; fi
      # shellcheck disable=SC2086 # words
      slipway mount ${OPTIONS:-} "nfs://$SERVER:$port/export?vers=4.2&proto=$1" "$work/mnt" >>"/run/out/logs/mount-$1.log" 2>&1 &
      mounted=$!
      await mountpoint -q "$work/mnt" || { tail -n 1 "/run/out/logs/mount-$1.log" >&2; return 1; } ;;
  esac
}
stop_mount() {
  if [ -n "$mounted" ]; then kill "$mounted"; wait "$mounted" || true; mounted=; else umount "$work/mnt"; fi
}

round() {
  local column
  for column in "kernel tcp" tcp shm "kernel rdma" rdma; do
    echo "$column"
    start_mount "$column"
    measure "$column" "$work/mnt"
    stop_mount
  done
}

check "the files are made" prepare
check "the server starts" serve; passed || exit 1
check "the kernel has RDMA" siw
for number in $(seq "$ROUNDS"); do check "round $number" round; done
cp "$work/samples" /run/out/
! grep -q ^fail "$RESULTS"
