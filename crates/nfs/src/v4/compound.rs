//! COMPOUND and CB_COMPOUND: sequences of operations that are decoded and encoded one at a time (RFC 8881 §16.2,
//! §20.2).
//!
//! A server decodes a [`CompoundHead`], and then each operation just before it executes it, with
//! [`Argop4::decode_next`]. The meaning of an operation can depend on the results of earlier ones, and operations after
//! a failure are never decoded. It encodes the results one at a time, too, with [`ResultsWriter`]. The status of the
//! compound is that of the last result.

use xdr::{Decode, DecodeError, Decoder, Encode, Encoder, Opaque};

use super::{callback::*, ops::*, status::Nfsstat4};

/// A tag that the results return. It should be UTF-8.
pub type Tag = Opaque<TAG_BOUND>;

/// The number of operations that follow. It is at most the number of words in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationCount(pub u32);

/// COMPOUND arguments up to the first operation.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CompoundHead {
    /// Opaque data that the results return.
    pub tag: Tag,
    /// The minor version.
    pub minorversion: u32,
    /// The number of operations that follow.
    pub operations: OperationCount,
}

impl CompoundHead {
    /// Returns the minor version. `arguments` is a copy of a decoder at the start of the arguments of COMPOUND.
    ///
    /// # Errors
    /// The arguments before the minor version are malformed.
    pub fn minorversion(mut arguments: Decoder<'_>) -> Result<u32, DecodeError> {
        arguments.opaque_in_place(TAG_BOUND)?;
        arguments.u32()
    }
}

/// COMPOUND arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CompoundArgs {
    /// Opaque data that the results return.
    pub tag: Tag,
    /// The minor version.
    pub minorversion: u32,
    /// The operations.
    pub argarray: Vec<Argop4>,
}

/// COMPOUND results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CompoundRes {
    /// The status of the last result.
    pub status: Nfsstat4,
    /// The value from the arguments.
    pub tag: Tag,
    /// The results up to the first failure.
    pub resarray: Vec<Resop4>,
}

/// CB_COMPOUND arguments up to the first operation.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbCompoundHead {
    /// Opaque data that the results return.
    pub tag: Tag,
    /// The minor version.
    pub minorversion: u32,
    /// The `callback_ident` of SETCLIENTID. It has no meaning since 4.1.
    pub callback_ident: u32,
    /// The number of operations that follow.
    pub operations: OperationCount,
}

/// CB_COMPOUND arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbCompoundArgs {
    /// Opaque data that the results return.
    pub tag: Tag,
    /// The minor version.
    pub minorversion: u32,
    /// The `callback_ident` of SETCLIENTID. It has no meaning since 4.1.
    pub callback_ident: u32,
    /// The operations.
    pub argarray: Vec<CbArgop4>,
}

/// CB_COMPOUND results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbCompoundRes {
    /// The status of the last result.
    pub status: Nfsstat4,
    /// The value from the arguments.
    pub tag: Tag,
    /// The results up to the first failure.
    pub resarray: Vec<CbResop4>,
}

impl Encode for OperationCount {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(self.0);
    }
}

impl Decode for OperationCount {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let len = decoder.length(decoder.remaining().saturating_sub(4) / 4)?;
        Ok(Self(len as u32))
    }
}

/// Writes the results of COMPOUND or CB_COMPOUND one at a time.
#[derive(Debug)]
pub struct ResultsWriter {
    status_at: usize,
    count_at: usize,
    count: u32,
}

impl ResultsWriter {
    /// Begins the results of a compound with `tag`.
    pub fn begin(encoder: &mut Encoder, tag: &Tag) -> Self {
        let status_at = encoder.stream_len();
        encoder.u32(Nfsstat4::Ok as u32);
        tag.encode(encoder);
        let count_at = encoder.stream_len();
        encoder.u32(0);
        Self { status_at, count_at, count: 0 }
    }

    /// Adds a result.
    pub fn push(&mut self, encoder: &mut Encoder, result: &impl Encode) {
        result.encode(encoder);
        self.count += 1;
    }

    /// Returns the number of results so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Completes the results. `status` is that of the last result, or the reason why no operation was executed.
    pub fn finish(&self, encoder: &mut Encoder, status: Nfsstat4) {
        encoder.patch_u32(self.status_at, status as u32);
        encoder.patch_u32(self.count_at, self.count);
    }
}

/// Maximum bytes of a tag. The RFCs define no bound.
pub const TAG_BOUND: usize = 1024;

#[cfg(test)]
mod tests {
    use xdr::{DecodeErrorKind, Message};

    use super::*;
    use crate::v4::{BadOperation, OpResult, Res4};

    fn operations(minorversion: u32, words: &[u32]) -> (Vec<Opnum4>, Option<BadOperation<Opnum4>>) {
        let bytes: bytes::Bytes = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let message = Message::from(bytes);
        let mut decoder = Decoder::new(&message);
        let mut seen = Vec::new();
        while decoder.remaining() > 0 {
            match Argop4::decode_next(&mut decoder, minorversion) {
                Ok(operation) => seen.push(operation.opnum()),
                Err(bad) => return (seen, Some(bad)),
            }
        }
        (seen, None)
    }

    fn refusal(minorversion: u32, words: &[u32]) -> (Opnum4, Nfsstat4) {
        let (_, bad) = operations(minorversion, words);
        let bad = bad.expect("an operation must be rejected");
        assert_eq!(Resop4::from(bad), Resop4::failure(bad.opnum, bad.status));
        assert_eq!(bad.error.is_some(), bad.status == Nfsstat4::BadXdr);
        (bad.opnum, bad.status)
    }

    #[test]
    fn operations_depend_on_the_minor_version() {
        assert_eq!(operations(0, &[24, 10, 16]).0, [Opnum4::PutRootFh, Opnum4::GetFh, Opnum4::LookupP]);
        let illegal = (Opnum4::Illegal, Nfsstat4::OpIllegal);
        for number in [0, 1, 2, 40, 58, 59, 75, 76, 10044, u32::MAX] {
            assert_eq!(refusal(0, &[number]), illegal, "{number}");
        }
        for number in [2, 59, 75, 10044] {
            assert_eq!(refusal(1, &[number]), illegal, "{number}");
        }
        assert_eq!(refusal(2, &[76]), illegal);
        //= rfc8881-8.8-1 rfc8881-8.8-2
        assert_eq!(refusal(1, &[30, 0, 0]), (Opnum4::Renew, Nfsstat4::NotSupp));
        assert_eq!(refusal(2, &[48]), (Opnum4::GetDeviceList, Nfsstat4::NotSupp));
        assert_eq!(operations(0, &[30, 0, 0]), (vec![Opnum4::Renew], None));
        assert_eq!(operations(2, &[58, 1]), (vec![Opnum4::ReclaimComplete], None));
    }

    #[test]
    fn malformed_arguments_are_reported_for_their_operation() {
        assert_eq!(refusal(1, &[24, 53, 0]), (Opnum4::Sequence, Nfsstat4::BadXdr));
        assert_eq!(refusal(1, &[58, 2]), (Opnum4::ReclaimComplete, Nfsstat4::BadXdr));
        assert_eq!(refusal(0, &[22, 129]), (Opnum4::PutFh, Nfsstat4::BadXdr));
        let message = Message::from(bytes::Bytes::from_static(&[0, 0, 0]));
        let bad = Argop4::decode_next(&mut Decoder::new(&message), 0).unwrap_err();
        assert_eq!((bad.opnum, bad.status), (Opnum4::Illegal, Nfsstat4::BadXdr));
    }

    #[test]
    fn operation_count_is_bounded_by_message_length() {
        let head = CompoundHead { tag: "t".into(), minorversion: 1, operations: OperationCount(2) };
        let mut words = Message::encode(&head).stream.to_vec();
        words.extend([0; 4]);
        let error = Message::from(bytes::Bytes::from(words)).decode::<CompoundHead>().unwrap_err();
        assert_eq!(error.kind, DecodeErrorKind::TooLong { len: 2, max: 1 });
    }

    #[test]
    fn results_written_one_at_a_time_equal_the_whole() {
        let resarray = vec![
            Resop4::PutRootFh(Res4::Ok(())),
            Resop4::GetFh(Res4::Ok("handle".into())),
            Resop4::failure(Opnum4::SetAttr, Nfsstat4::Perm),
        ];
        let whole = CompoundRes { status: Nfsstat4::Perm, tag: "tag".into(), resarray };
        let mut encoder = Encoder::default();
        encoder.u32(7);
        let mut writer = ResultsWriter::begin(&mut encoder, &whole.tag);
        for result in &whole.resarray {
            writer.push(&mut encoder, result);
        }
        assert_eq!(writer.count(), 3);
        writer.finish(&mut encoder, whole.resarray.last().unwrap().status());
        assert_eq!(encoder.finish().stream[4..], Message::encode(&whole).stream);
    }

    #[test]
    fn every_operation_can_fail_with_only_a_status() {
        for &opnum in Opnum4::ALL.iter().chain([&Opnum4::Illegal]) {
            let result = Resop4::failure(opnum, Nfsstat4::Delay);
            assert_eq!((result.opnum(), result.status()), (opnum, Nfsstat4::Delay));
            let len = if opnum == Opnum4::SetAttr { 12 } else { 8 };
            assert_eq!(Message::encode(&result).len(), len, "{opnum:?}");
        }
        assert_eq!(LockTRes::failure(Nfsstat4::Ok).status(), Nfsstat4::Ok);
    }

    #[test]
    fn every_operation_can_fail_with_every_status() {
        for &opnum in Opnum4::ALL.iter().chain([&Opnum4::Illegal]) {
            for &status in Nfsstat4::ALL {
                let result = Resop4::failure(opnum, status);
                assert!([status, Nfsstat4::ServerFault].contains(&result.status()), "{opnum:?} {status:?}");
                assert_eq!(Message::encode(&result).decode::<Resop4>(), Ok(result));
            }
        }
        let denied = Resop4::failure(Opnum4::Lock, Nfsstat4::Denied);
        assert_eq!(denied.status(), Nfsstat4::ServerFault, "DENIED without a holder must become SERVERFAULT");
    }
}
