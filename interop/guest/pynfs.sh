# Runs in the guest: knfsd with an ext4 and a lease of 20 seconds, for pynfs on the host (README.md), until /run/out/done is there.
. /run/out/guest/lib.sh
: >"$RESULTS"
LEASE=20

serve() {
  truncate -s 1G /run/disk; mkfs.ext4 -q /run/disk
  mkdir -p /run/export; mount -o loop /run/disk /run/export; mkdir -m 1777 /run/export/4.0 /run/export/4.1
  mount -t nfsd nfsd /proc/fs/nfsd
  echo $LEASE >/proc/fs/nfsd/nfsv4leasetime; echo $LEASE >/proc/fs/nfsd/nfsv4gracetime
  knfsd /run/export
}

check "pynfs: knfsd serves" serve; passed || exit 1
touch /run/out/ready
until [ -e /run/out/done ]; do sleep 0.5; done
