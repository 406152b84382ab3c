//! The part of the C interface of libibverbs and librdmacm that the provider uses: types, constants, layouts.
//!
//! See `infiniband/verbs.h` and `rdma/rdma_cma.h` of rdma-core; the names are taken from there. Both libraries keep
//! their ABI (`IBVERBS_1.1`, `RDMACM_1.0`) on 64-bit Linux, and add new fields after those declared here. Of a
//! structure that only the library allocates, only the fields up to the last one that is read are declared. The layouts
//! are asserted at compile time, and `tests/verbs_layout.rs` compares them with installed headers.

#![allow(non_camel_case_types, missing_docs, reason = "the names of the C interface")]

use std::ffi::{c_char, c_int, c_uint, c_void};

macro_rules! opaque {
    ($($name:ident)*) => { $(#[repr(C)] pub struct $name { _opaque: [u8; 0] })* };
}

opaque! { ibv_srq ibv_ah }

#[repr(C)]
pub struct ibv_device {
    _ops: [*mut c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
}

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
}

type Compat = *mut c_void;

/// The calls of the data path, which are inline functions in the headers.
#[repr(C)]
pub struct ibv_context_ops {
    _compat_query: [Compat; 2],
    _compat_pd_and_mr: [Compat; 5],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw>,
    _bind_mw: Compat,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    _compat_create_cq: Compat,
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    _compat_cq_and_srq: [Compat; 7],
    pub post_srq_recv: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    _compat_qp: [Compat; 4],
    pub post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    _compat_rest: [Compat; 5],
}

#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}

#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub kind: c_int,
}

#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}

#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
}

#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_int,
    pub qp_type: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    /// `imm_data` in network byte order, or `invalidate_rkey`.
    pub invalidate_rkey: u32,
    pub remote_addr: u64,
    /// The first field after `remote_addr` in `wr.rdma`; the union ends after `wr.atomic`.
    pub rkey: u32,
    _wr_rest: [u32; 5],
    _xrc: u64,
    pub bind_mw: ibv_bind_mw,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_bind_mw {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Or `imm_data`.
    pub invalidated_rkey: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

#[repr(C)]
pub struct ibv_srq_attr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

#[repr(C)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
}

/// Only `min_rnr_timer` is ever set.
#[repr(C, align(8))]
pub struct ibv_qp_attr {
    pub _before: [u8; 128],
    pub min_rnr_timer: u8,
    pub _behind: [u8; 15],
}

#[repr(C)]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// The structure that the exported `ibv_query_port` fills in: `struct ibv_port_attr` up to `link_layer`, and room for
/// the rest.
#[repr(C)]
#[derive(Default)]
pub struct ibv_port_attr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

#[repr(C)]
pub struct ibv_async_event {
    /// A queue pair, a completion queue, … or a port's number, by `event_type`.
    pub element: *mut c_void,
    pub event_type: c_int,
}

/// The same size as `struct sockaddr_storage`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct sockaddr_storage {
    pub bytes: [u8; 128],
}

#[repr(C)]
pub struct rdma_event_channel {
    pub fd: c_int,
}

#[repr(C)]
pub struct rdma_route {
    pub src_addr: sockaddr_storage,
    pub dst_addr: sockaddr_storage,
    /// `struct rdma_ib_addr`: two GIDs and a P_Key.
    _ib_addr: [u64; 5],
    _path_rec: *mut c_void,
    _num_paths: c_int,
}

#[repr(C)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: c_int,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

#[repr(C)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: c_int,
    pub status: c_int,
    pub conn: rdma_conn_param,
}

pub const IBV_TRANSPORT_IWARP: c_int = 1;

pub const IBV_DEVICE_MEM_MGT_EXTENSIONS: c_uint = 1 << 21;
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2A: c_uint = 1 << 23;
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: c_uint = 1 << 24;

pub const IBV_PORT_ACTIVE: c_int = 4;
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;

pub const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
pub const IBV_ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub const IBV_ACCESS_REMOTE_READ: c_int = 1 << 2;
pub const IBV_ACCESS_MW_BIND: c_int = 1 << 4;

pub const IBV_MW_TYPE_2: c_int = 2;

pub const IBV_QPT_RC: c_int = 2;

pub const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;

pub const IBV_WR_RDMA_WRITE: c_uint = 0;
pub const IBV_WR_SEND: c_uint = 2;
pub const IBV_WR_RDMA_READ: c_uint = 4;
pub const IBV_WR_LOCAL_INV: c_uint = 7;
pub const IBV_WR_BIND_MW: c_uint = 8;
pub const IBV_WR_SEND_WITH_INV: c_uint = 9;

pub const IBV_SEND_SIGNALED: c_uint = 1 << 1;
pub const IBV_SEND_SOLICITED: c_uint = 1 << 2;
pub const IBV_SEND_INLINE: c_uint = 1 << 3;

pub const IBV_WC_SUCCESS: c_uint = 0;
pub const IBV_WC_LOC_LEN_ERR: c_uint = 1;
pub const IBV_WC_WR_FLUSH_ERR: c_uint = 5;
pub const IBV_WC_REM_INV_REQ_ERR: c_uint = 9;
pub const IBV_WC_REM_ACCESS_ERR: c_uint = 10;
pub const IBV_WC_REM_OP_ERR: c_uint = 11;
pub const IBV_WC_RETRY_EXC_ERR: c_uint = 12;
pub const IBV_WC_RNR_RETRY_EXC_ERR: c_uint = 13;

pub const IBV_WC_IP_CSUM_OK: c_uint = 1 << 2;
pub const IBV_WC_WITH_INV: c_uint = 1 << 3;

pub const IBV_EVENT_CQ_ERR: c_int = 0;
pub const IBV_EVENT_QP_FATAL: c_int = 1;
pub const IBV_EVENT_QP_REQ_ERR: c_int = 2;
pub const IBV_EVENT_QP_ACCESS_ERR: c_int = 3;
pub const IBV_EVENT_DEVICE_FATAL: c_int = 8;
pub const IBV_EVENT_SRQ_ERR: c_int = 14;
pub const IBV_EVENT_QP_LAST_WQE_REACHED: c_int = 16;

pub const RDMA_PS_TCP: c_int = 0x0106;

pub const RDMA_OPTION_ID: c_int = 0;
pub const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
pub const RDMA_OPTION_ID_AFONLY: c_int = 2;

pub const RDMA_CM_EVENT_ADDR_RESOLVED: c_int = 0;
pub const RDMA_CM_EVENT_ADDR_ERROR: c_int = 1;
pub const RDMA_CM_EVENT_ROUTE_RESOLVED: c_int = 2;
pub const RDMA_CM_EVENT_ROUTE_ERROR: c_int = 3;
pub const RDMA_CM_EVENT_CONNECT_REQUEST: c_int = 4;
pub const RDMA_CM_EVENT_CONNECT_ERROR: c_int = 6;
pub const RDMA_CM_EVENT_UNREACHABLE: c_int = 7;
pub const RDMA_CM_EVENT_REJECTED: c_int = 8;
pub const RDMA_CM_EVENT_ESTABLISHED: c_int = 9;
pub const RDMA_CM_EVENT_DISCONNECTED: c_int = 10;
pub const RDMA_CM_EVENT_DEVICE_REMOVAL: c_int = 11;
pub const RDMA_CM_EVENT_TIMEWAIT_EXIT: c_int = 15;

/// `(name, offset)` of the fields that are accessed through a pointer, `(name, size)` of the types that are passed by
/// value or in arrays.
#[doc(hidden)]
pub const LAYOUT: &[(&str, usize)] = {
    use std::mem::{offset_of, size_of};
    &[
        ("offsetof(struct ibv_device, node_type)", offset_of!(ibv_device, node_type)),
        ("offsetof(struct ibv_device, transport_type)", offset_of!(ibv_device, transport_type)),
        ("offsetof(struct ibv_device, name)", offset_of!(ibv_device, name)),
        ("offsetof(struct ibv_context, ops)", offset_of!(ibv_context, ops)),
        ("offsetof(struct ibv_context, async_fd)", offset_of!(ibv_context, async_fd)),
        ("sizeof(struct ibv_context_ops)", size_of::<ibv_context_ops>()),
        ("offsetof(struct ibv_context_ops, alloc_mw)", offset_of!(ibv_context_ops, alloc_mw)),
        ("offsetof(struct ibv_context_ops, dealloc_mw)", offset_of!(ibv_context_ops, dealloc_mw)),
        ("offsetof(struct ibv_context_ops, poll_cq)", offset_of!(ibv_context_ops, poll_cq)),
        ("offsetof(struct ibv_context_ops, req_notify_cq)", offset_of!(ibv_context_ops, req_notify_cq)),
        ("offsetof(struct ibv_context_ops, post_srq_recv)", offset_of!(ibv_context_ops, post_srq_recv)),
        ("offsetof(struct ibv_context_ops, post_send)", offset_of!(ibv_context_ops, post_send)),
        ("offsetof(struct ibv_context_ops, post_recv)", offset_of!(ibv_context_ops, post_recv)),
        ("offsetof(struct ibv_mr, lkey)", offset_of!(ibv_mr, lkey)),
        ("offsetof(struct ibv_mr, rkey)", offset_of!(ibv_mr, rkey)),
        ("offsetof(struct ibv_mw, rkey)", offset_of!(ibv_mw, rkey)),
        ("offsetof(struct ibv_comp_channel, fd)", offset_of!(ibv_comp_channel, fd)),
        ("offsetof(struct ibv_cq, context)", offset_of!(ibv_cq, context)),
        ("offsetof(struct ibv_qp, context)", offset_of!(ibv_qp, context)),
        ("offsetof(struct ibv_qp, qp_num)", offset_of!(ibv_qp, qp_num)),
        ("sizeof(struct ibv_sge)", size_of::<ibv_sge>()),
        ("sizeof(struct ibv_send_wr)", size_of::<ibv_send_wr>()),
        ("offsetof(struct ibv_send_wr, num_sge)", offset_of!(ibv_send_wr, num_sge)),
        ("offsetof(struct ibv_send_wr, opcode)", offset_of!(ibv_send_wr, opcode)),
        ("offsetof(struct ibv_send_wr, send_flags)", offset_of!(ibv_send_wr, send_flags)),
        ("offsetof(struct ibv_send_wr, invalidate_rkey)", offset_of!(ibv_send_wr, invalidate_rkey)),
        ("offsetof(struct ibv_send_wr, wr.rdma.remote_addr)", offset_of!(ibv_send_wr, remote_addr)),
        ("offsetof(struct ibv_send_wr, wr.rdma.rkey)", offset_of!(ibv_send_wr, rkey)),
        ("offsetof(struct ibv_send_wr, bind_mw.mw)", offset_of!(ibv_send_wr, bind_mw.mw)),
        ("offsetof(struct ibv_send_wr, bind_mw.rkey)", offset_of!(ibv_send_wr, bind_mw.rkey)),
        ("offsetof(struct ibv_send_wr, bind_mw.bind_info)", offset_of!(ibv_send_wr, bind_mw.bind_info)),
        ("sizeof(struct ibv_mw_bind_info)", size_of::<ibv_mw_bind_info>()),
        ("offsetof(struct ibv_mw_bind_info, mw_access_flags)", offset_of!(ibv_mw_bind_info, mw_access_flags)),
        ("sizeof(struct ibv_recv_wr)", size_of::<ibv_recv_wr>()),
        ("sizeof(struct ibv_wc)", size_of::<ibv_wc>()),
        ("offsetof(struct ibv_wc, byte_len)", offset_of!(ibv_wc, byte_len)),
        ("offsetof(struct ibv_wc, invalidated_rkey)", offset_of!(ibv_wc, invalidated_rkey)),
        ("offsetof(struct ibv_wc, wc_flags)", offset_of!(ibv_wc, wc_flags)),
        ("sizeof(struct ibv_qp_init_attr)", size_of::<ibv_qp_init_attr>()),
        ("offsetof(struct ibv_qp_init_attr, cap)", offset_of!(ibv_qp_init_attr, cap)),
        ("sizeof(struct ibv_srq_init_attr)", size_of::<ibv_srq_init_attr>()),
        ("offsetof(struct ibv_srq_init_attr, attr.srq_limit)", offset_of!(ibv_srq_init_attr, attr.srq_limit)),
        ("sizeof(struct ibv_qp_attr)", size_of::<ibv_qp_attr>()),
        ("offsetof(struct ibv_qp_attr, min_rnr_timer)", offset_of!(ibv_qp_attr, min_rnr_timer)),
        ("sizeof(struct ibv_device_attr)", size_of::<ibv_device_attr>()),
        ("offsetof(struct ibv_device_attr, device_cap_flags)", offset_of!(ibv_device_attr, device_cap_flags)),
        ("offsetof(struct ibv_device_attr, phys_port_cnt)", offset_of!(ibv_device_attr, phys_port_cnt)),
        ("sizeof(struct ibv_port_attr)", size_of::<ibv_port_attr>()),
        ("offsetof(struct ibv_port_attr, link_layer)", offset_of!(ibv_port_attr, link_layer)),
        ("sizeof(struct ibv_async_event)", size_of::<ibv_async_event>()),
        ("sizeof(struct rdma_route)", size_of::<rdma_route>()),
        ("offsetof(struct rdma_cm_id, qp)", offset_of!(rdma_cm_id, qp)),
        ("offsetof(struct rdma_cm_id, route.addr.dst_storage)", offset_of!(rdma_cm_id, route.dst_addr)),
        ("offsetof(struct rdma_cm_id, port_num)", offset_of!(rdma_cm_id, port_num)),
        ("sizeof(struct rdma_conn_param)", size_of::<rdma_conn_param>()),
        ("offsetof(struct rdma_conn_param, rnr_retry_count)", offset_of!(rdma_conn_param, rnr_retry_count)),
        ("offsetof(struct rdma_cm_event, param.conn)", offset_of!(rdma_cm_event, conn)),
    ]
};

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<ibv_send_wr>() == 128 && offset_of!(ibv_send_wr, bind_mw) == 80);
    assert!(size_of::<ibv_recv_wr>() == 32 && size_of::<ibv_wc>() == 48 && size_of::<ibv_sge>() == 16);
    assert!(size_of::<ibv_context_ops>() == 32 * 8 && offset_of!(ibv_context_ops, post_send) == 25 * 8);
    assert!(offset_of!(ibv_context_ops, poll_cq) == 11 * 8 && offset_of!(ibv_context_ops, alloc_mw) == 7 * 8);
    assert!(size_of::<ibv_device_attr>() == 232 && size_of::<ibv_qp_init_attr>() == 64);
    assert!(size_of::<ibv_port_attr>() == 52 && size_of::<rdma_conn_param>() == 24);
    assert!(offset_of!(rdma_cm_id, port_num) == 32 + size_of::<rdma_route>() + 4);
};
