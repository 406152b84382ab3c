# Runs in the guest: the kernel's server, the user-space floor (crates/slipway/examples/floor.rs) and Slipway's server on
# one tmpfs, each with the same clients in turn. The clients are `slipway bench` with version 3, and the kernel's own with
# version 4.2, fio and O_DIRECT. SLIPWAY, FLOOR, SECONDS_EACH and ROUNDS are in /run/out/env. Each line of
# /run/out/samples has a name, "knfsd", "floor" or "slipway", the kind of client, and its report as JSON.
. /run/out/guest/lib.sh
. /run/out/env
: >"$RESULTS"
mkdir -p /run/near
cp "$SLIPWAY" /run/near/slipway
cp "$FLOOR" /run/near/floor
PATH=/run/near:$PATH

serve() {
  mkdir -p /run/export /run/state
  mount -t tmpfs -o size=1g export /run/export
  knfsd /run/export
  # The file for fio exists, so that no first write of a page is measured.
  dd if=/dev/zero of=/run/export/fio bs=1M count=64 status=none
  instance slipway 3049
  # The floor has a server of its own. A client that finds one server at two ports uses one connection for both.
  instance behind 5049
  mkdir -p /run/export/floor
  floor 127.0.0.1:4049 127.0.0.1:5049 /run/export/fio /run/export/floor >/run/out/logs/floor.log 2>&1 &
  await bash -c '</dev/tcp/127.0.0.1/4049'
}

# instance NAME PORT: starts a server.
instance() {
  slipway serve /run/export --name /run/export --squash none --state-dir "/run/state/$1" --rpcbind off \
    --listen "tcp://127.0.0.1:$2" --ready-file "/run/ready-$1" >"/run/out/logs/serve-$1.log" 2>&1 &
  await test -s "/run/ready-$1"
}

url() {
  case $1 in
    knfsd) echo "nfs://127.0.0.1:2049/run/export?vers=3&mountport=20048&mountproto=tcp&uid=0&gid=0" ;;
    floor) echo "nfs://127.0.0.1:4049/run/export?vers=3&mountport=4049&mountproto=tcp&uid=0&gid=0" ;;
    slipway) echo "nfs://127.0.0.1:3049/run/export?vers=3&mountport=3049&mountproto=tcp&uid=0&gid=0" ;;
  esac
}

lean() {
  local report
  report=$(slipway bench ${3:?} --url "$(url "$2")" --seconds "$SECONDS_EACH" --rounds 1 --json)
  printf '%s\t%s\tbench\t%s\n' "$1" "$2" "$report" >>/run/out/samples
}

linux() {
  local at=/run/mnt/$2 report
  report=$(fio --name=job --directory="$at" --filename=fio --size=64m --direct=1 --time_based --runtime="$SECONDS_EACH" \
    --output-format=json --ioengine=libaio ${3:?} | tr -d '\n')
  printf '%s\t%s\tfio\t%s\n' "$1" "$2" "$report" >>/run/out/samples
}

mounts() {
  mkdir -p /run/mnt/knfsd /run/mnt/floor /run/mnt/slipway
  mount -t nfs -o vers=4.2,proto=tcp,port=2049,nosharecache 127.0.0.1:/ /run/mnt/knfsd
  mount -t nfs -o vers=4.2,proto=tcp,port=3049,nosharecache 127.0.0.1:/run/export /run/mnt/slipway
  mount -t nfs -o vers=4.2,proto=tcp,port=4049,nosharecache 127.0.0.1:/run/export /run/mnt/floor
}

# The servers alternate within a round, so that other load on the machine affects both.
measure() {
  local round name client words side
  for round in $(seq "$ROUNDS"); do
    while IFS='|' read -r name client words; do
      for side in knfsd floor slipway; do "$client" "$name" "$side" "$words" </dev/null; done
    done <<'P'
READ 128 KiB × 8|lean|read --block 128K --in-flight 8
WRITE 128 KiB × 8|lean|write --block 128K --in-flight 8
random READ 4 KiB × 16|lean|read --random --block 4K --in-flight 16
GETATTR × 16|lean|getattr --in-flight 16
CREATE+REMOVE × 16|lean|create --in-flight 16
Linux 4.2: READ 128 KiB × 8|linux|--rw=read --bs=128k --iodepth=8
Linux 4.2: WRITE 128 KiB × 8|linux|--rw=write --bs=128k --iodepth=8
Linux 4.2: random READ 4 KiB × 1|linux|--rw=randread --bs=4k --iodepth=1
Linux 4.2: random READ 4 KiB × 16|linux|--rw=randread --bs=4k --iodepth=16
Linux 4.2: random WRITE 4 KiB × 16|linux|--rw=randwrite --bs=4k --iodepth=16
P
  done
}

check "the servers start" serve; passed || exit 1
check "the kernel's client mounts them" mounts; passed || exit 1
check "the servers are measured" measure
! grep -q ^fail "$RESULTS"
