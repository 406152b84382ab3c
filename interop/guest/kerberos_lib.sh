# Shared by the scripts with Kerberos 5: a realm whose key distribution centre is in the guest, its users, and what Linux's client needs.
# The guest is the host `venus`.
SERVER=server.slipway.test
VENUS=venus.slipway.test
NEPTUNE=neptune.slipway.test
MARS=mars.slipway.test
REALM=/run/realm

# USERS are users in addition to alice and bob. The encryption type is the one that this kernel and every release of MIT's library have.
realm() {
  local name
  mkdir -p $REALM
  cat >/etc/krb5.conf <<K
[libdefaults]
default_realm = SLIPWAY.TEST
rdns = false
dns_lookup_kdc = false
dns_lookup_realm = false
dns_canonicalize_hostname = false
permitted_enctypes = aes256-cts-hmac-sha1-96
[realms]
SLIPWAY.TEST = {
  kdc = 10.9.1.2:88
}
[domain_realm]
.slipway.test = SLIPWAY.TEST
K
  cat >$REALM/kdc.conf <<K
[kdcdefaults]
kdc_listen = 10.9.1.2:88
kdc_tcp_listen = 10.9.1.2:88
[realms]
SLIPWAY.TEST = {
  database_name = $REALM/principal
  key_stash_file = $REALM/stash
  acl_file = $REALM/acl
  supported_enctypes = aes256-cts-hmac-sha1-96:normal
}
K
  export KRB5_KDC_PROFILE=$REALM/kdc.conf
  # The emulated machine has collected little randomness yet.
  kdb5_util create -s -P master -r SLIPWAY.TEST
  { for name in alice bob ${USERS:-}; do echo "addprinc -pw $name $name"; done
    for name in $SERVER $VENUS $NEPTUNE $MARS; do echo "addprinc -randkey nfs/$name"; done
    for name in $SERVER $NEPTUNE; do echo "ktadd -k /run/$name.keytab nfs/$name"; done
    for name in $VENUS $MARS; do echo "ktadd -k /etc/krb5.keytab nfs/$name"; done
  } | kadmin.local
  printf 'alice:x:1000:1000::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\n' >>/etc/passwd
  krb5kdc -n >/run/out/logs/kdc.log 2>&1 &
  await ticket alice /tmp/krb5cc_1000
  chown 1000:1000 /tmp/krb5cc_1000
}

# ticket USER CACHE [OPTION…]
ticket() { local user=$1 cache=$2; shift 2; echo "$user" | KRB5CCNAME=FILE:$cache kinit "$@" "$user"; }

alice() { setpriv --reuid 1000 --regid 1000 --clear-groups "$@"; }
bob() { setpriv --reuid 1001 --regid 1001 --clear-groups "$@"; }

gssd() {
  mountpoint -q /run/rpc_pipefs || mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
  rpc.gssd -f -vvv -p /run/rpc_pipefs >/run/out/logs/gssd.log 2>&1 &
  await test -e /run/rpc_pipefs/gssd/clntXX
}

# options TRANSPORT VERSION FLAVOR: of a mount without locks of NFSv3
options() {
  local by=proto=$1
  [ "$1" = rdma ] && by+=,port=20049
  [ "$2" = 3 ] && by+=,nolock,mountproto=tcp
  echo "vers=$2,sec=$3,$by"
}

