//! NFS_ACL, called directly: the wire format that Linux and Solaris expect, and the effect of ACLs on ACCESS and READ.

use nfs::{nfsacl::*, v3::*};
use server::{Access as ExportAccess, Export, ExportId, ExportOptions, NfsAcl3, Squash};
use xdr::{Array, Message};

use crate::common::{Rig, memory, results, server_of, user};

struct Acls {
    rig: Rig,
    service: NfsAcl3,
    file: NfsFh3,
}

impl Acls {
    fn new() -> Self {
        let options = ExportOptions { squash: Squash::None, ..Default::default() };
        let server = server_of(Export::new("/m", ExportId::unique(), memory(), options).unwrap());
        let rig = Rig::calling(&server);
        let file = rig.file(&rig.root(), "f", b"data");
        Self { service: server.nfsacl3(), file, rig }
    }

    fn get(&self, object: &NfsFh3, mask: u32) -> GetAclRes {
        let args = Message::encode(&GetAclArgs { fh: object.clone(), mask });
        results(&self.rig.raw(&self.service, AclProc3::GetAcl as u32, &args).unwrap())
    }

    fn set(&self, rig: &Rig, object: &NfsFh3, acl: SecAttr) -> SetAclRes {
        let args = Message::encode(&SetAclArgs { fh: object.clone(), acl });
        results(&rig.raw(&self.service, AclProc3::SetAcl as u32, &args).unwrap())
    }
}

fn entries(entries: &[(u32, u32, u32)]) -> Acl {
    let entries: Vec<_> = entries.iter().map(|&(kind, id, perm)| AclEntry { kind, id, perm }).collect();
    Acl { count: entries.len() as u32, entries: Array(entries) }
}

fn access(acl: Acl) -> SecAttr {
    SecAttr { mask: NFS_ACL, acl, ..Default::default() }
}

fn status<T, F>(res: Res3<T, F>) -> Nfsstat3 {
    match res.into_result() {
        Ok(_) => Nfsstat3::Ok,
        Err((status, _)) => status,
    }
}

#[simnet::test]
async fn object_without_acl_has_acl_of_its_mode_with_a_mask() {
    let acls = Acls::new();
    let ok = acls.get(&acls.file, NFS_ACL | NFS_ACLCNT | NFS_DFACL | NFS_DFACLCNT).into_result().unwrap();
    let expected = [(ACL_USER_OBJ, 0, 6), (ACL_GROUP_OBJ, 0, 4), (ACL_MASK, 0, 4), (ACL_OTHER, 0, 4)];
    assert_eq!((ok.acl.acl, ok.acl.default_acl), (entries(&expected), Acl::default()));
    assert_eq!(ok.attr.unwrap().mode, 0o644);
    let counted = acls.get(&acls.file, NFS_ACLCNT).into_result().unwrap().acl.acl;
    assert_eq!((counted.count, counted.entries.0.len()), (4, 0), "only the counts must be returned");
    assert_eq!(status(acls.get(&acls.file, 16)), Nfsstat3::Inval);
    assert_eq!(status(acls.get(&"forged".into(), NFS_ACL)), Nfsstat3::BadHandle);
}

#[simnet::test]
async fn acl_is_stored_in_order_and_enforced() {
    let acls = Acls::new();
    let list =
        [(ACL_OTHER, 0, 0), (ACL_MASK, 0, 0x16), (ACL_USER, 1000, 6), (ACL_USER_OBJ, 99, 6), (ACL_GROUP_OBJ, 99, 0)];
    let attr = acls.set(&acls.rig, &acls.file, access(entries(&list))).into_result().unwrap();
    assert_eq!(attr.unwrap().mode, 0o660);
    let kept = acls.get(&acls.file, NFS_ACL).into_result().unwrap().acl.acl;
    let sorted =
        [(ACL_USER_OBJ, 0, 6), (ACL_USER, 1000, 6), (ACL_GROUP_OBJ, 0, 0), (ACL_MASK, 0, 6), (ACL_OTHER, 0, 0)];
    assert_eq!(kept, entries(&sorted));
    let may = |uid| {
        let args = AccessArgs { object: acls.file.clone(), access: ACCESS3_READ | ACCESS3_MODIFY };
        acls.rig.as_user(uid, uid).call::<Access>(args).into_result().unwrap().access
    };
    assert_eq!((may(1000), may(1001)), (ACCESS3_READ | ACCESS3_MODIFY, 0));
    // The mask equals the group's permissions, and there are no named users or groups, so this ACL has the same meaning
    // as the mode and is not stored.
    let plain = [(ACL_USER_OBJ, 0, 7), (ACL_GROUP_OBJ, 0, 5), (ACL_MASK, 0, 5), (ACL_OTHER, 0, 4)];
    acls.set(&acls.rig, &acls.file, access(entries(&plain))).into_result().unwrap();
    assert_eq!((may(1001), acls.rig.attr(&acls.file).mode), (ACCESS3_READ, 0o754));
}

#[simnet::test]
async fn default_acls_are_marked_and_inherited() {
    let acls = Acls::new();
    let dir = acls.rig.dir(&acls.rig.root(), "d");
    let mark = |kind| kind | ACL_DEFAULT;
    let list = entries(&[
        (mark(ACL_USER_OBJ), 0, 7),
        (mark(ACL_USER), 1000, 7),
        (mark(ACL_GROUP_OBJ), 0, 5),
        (mark(ACL_MASK), 0, 7),
        (mark(ACL_OTHER), 0, 0),
    ]);
    let set = SecAttr { mask: NFS_DFACL, default_acl: list.clone(), ..Default::default() };
    acls.set(&acls.rig, &dir, set).into_result().unwrap();
    assert_eq!(acls.get(&dir, NFS_DFACL).into_result().unwrap().acl.default_acl, list);
    let file = acls.rig.file(&dir, "f", b"");
    assert_eq!(acls.get(&file, NFS_ACL).into_result().unwrap().acl.acl.count, 5);
    let none = SecAttr { mask: NFS_DFACL, ..Default::default() };
    acls.set(&acls.rig, &dir, none).into_result().unwrap();
    assert_eq!(acls.get(&dir, NFS_DFACL).into_result().unwrap().acl.default_acl, Acl::default());
}

#[simnet::test]
async fn invalid_acls_are_rejected_and_change_nothing() {
    let acls = Acls::new();
    let base = [(ACL_USER_OBJ, 0, 7), (ACL_GROUP_OBJ, 0, 7), (ACL_OTHER, 0, 7)];
    for bad in [(ACL_USER, 5, 7), (ACL_OTHER, 0, 1), (0x40, 0, 1), (ACL_MASK | ACL_USER, 0, 1)] {
        let list = entries(&[&base[..], &[bad]].concat());
        assert_eq!(status(acls.set(&acls.rig, &acls.file, access(list))), Nfsstat3::Inval, "{bad:?}");
    }
    let short = Acl { count: 4, ..entries(&base) };
    assert_eq!(status(acls.set(&acls.rig, &acls.file, access(short))), Nfsstat3::Inval);
    let other = Rig { caller: user(1000, 1000), ..acls.rig.clone() };
    assert_eq!(status(acls.set(&other, &acls.file, access(entries(&base)))), Nfsstat3::Perm);
    assert_eq!(acls.rig.attr(&acls.file).mode, 0o644);

    let options = ExportOptions { access: ExportAccess::ReadOnly, squash: Squash::None, ..Default::default() };
    let server = server_of(Export::new("/m", ExportId::unique(), memory(), options).unwrap());
    let rig = Rig::calling(&server);
    let acls = Acls { service: server.nfsacl3(), file: rig.root(), rig };
    assert_eq!(status(acls.set(&acls.rig, &acls.file, access(entries(&base)))), Nfsstat3::RoFs);
}
