//! The script with which setfacl and getfacl are tested over `slipway mount`.

/// Sets and reads POSIX ACLs in the current directory, an empty one of a mount. A script before it defines `server WHERE`: it prints what
/// `effective .` prints for the same directory at the server. `WHERE` is the first argument.
pub const ACLS: &str = r#"
# NFSv4 shows the permissions that remain after the mask.
effective() { getfacl -Rcn "$1" | sed -E 's/:[rwx-]{3}[[:space:]]+#effective:/:/'; }
same() { diff <(effective .) <(server "$1"); }
mkdir dir
echo data >file
chmod 640 file
same "$1"
setfacl -m u:12:rw,g:34:r file
test "$(getfacl -cn file | grep -c '^user:12:rw-')" = 1
same "$1"
setfacl -d -m u:12:rwx,g::rx dir
echo new >dir/new
mkdir dir/sub
getfacl -cn dir/new | grep '^user:12:'
same "$1"
cp -p file copy
test "$(getfacl -cn copy)" = "$(getfacl -cn file)"
setfacl -x u:12 file
setfacl -k dir
setfacl -b copy
same "$1"
test "$(getfacl -cn copy | grep -c .)" = 3
setfacl -n -m m::- file
test "$(stat -c %a file)" = 600
same "$1"
"#;
