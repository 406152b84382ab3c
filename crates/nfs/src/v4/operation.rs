//! The macro that defines types from a table of operations, for COMPOUND and CB_COMPOUND.

use xdr::DecodeError;

use super::status::Nfsstat4;

/// An operation that cannot be executed: the number and the status of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadOperation<N> {
    /// The operation, or the one called ILLEGAL.
    pub opnum: N,
    /// The status: OP_ILLEGAL, NOTSUPP or BADXDR.
    pub status: Nfsstat4,
    /// The decoding error, for BADXDR.
    pub error: Option<DecodeError>,
}

macro_rules! operations {
    (
        $(#[$number_doc:meta])* numbers $Opnum:ident;
        $(#[$argument_doc:meta])* arguments $Argop:ident;
        $(#[$result_doc:meta])* results $Resop:ident;
        $($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $minors:expr, ($($args:ty)?) => $res:ty;)*
    ) => {
        $(#[$number_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, xdr::Encode, xdr::Decode)]
        #[repr(u32)]
        pub enum $Opnum {
            $($(#[$doc])* $name = $number,)*
            /// The result of a number that belongs to no operation.
            Illegal = 10044,
        }

        impl $Opnum {
            /// All operations, in order, without ILLEGAL.
            pub const ALL: &[$Opnum] = &[$($Opnum::$name),*];

            /// Returns the operation with this number. Returns `None` for the number of ILLEGAL.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some($Opnum::$name),)* _ => None }
            }

            /// Returns the name in the RFCs.
            pub const fn name(self) -> &'static str {
                match self { $($Opnum::$name => $text,)* $Opnum::Illegal => "ILLEGAL" }
            }

            /// Returns the minor versions that define the operation.
            pub const fn minor_versions(self) -> std::ops::RangeInclusive<u32> {
                match self { $($Opnum::$name => $minors,)* $Opnum::Illegal => 0..=u32::MAX }
            }
        }

        $(#[$argument_doc])*
        #[derive(Clone, Debug, PartialEq, Eq, xdr::Encode, xdr::Decode)]
        pub enum $Argop {
            $($(#[$doc])* #[xdr($number)] $name $(($args))?,)*
        }

        impl $Argop {
            /// Returns the number of the operation.
            pub const fn opnum(&self) -> $Opnum {
                match self { $($Argop::$name { .. } => $Opnum::$name,)* }
            }

            /// Decodes the next operation of a compound in this minor version.
            ///
            /// # Errors
            /// Returns an error if the minor version has no such operation, or if the arguments are malformed. The
            /// position of the next operation is then unknown. It is not needed, because a compound ends with the first
            /// failure.
            pub fn decode_next(
                decoder: &mut xdr::Decoder<'_>,
                minorversion: u32,
            ) -> Result<Self, $crate::v4::BadOperation<$Opnum>> {
                use $crate::v4::{BadOperation, Nfsstat4};
                let bad = |opnum, status, error| Err(BadOperation { opnum, status, error });
                let number = match decoder.peek_u32() {
                    Ok(number) => number,
                    Err(error) => return bad($Opnum::Illegal, Nfsstat4::BadXdr, Some(error)),
                };
                // RFC 8881 §16.2.3: a number that this minor version does not define is illegal, even if a later
                // version defines it. A number that only an earlier version defines is known, but must not be
                // implemented: §17.
                //= rfc8881-18.52.3-1
                let Some(opnum) = $Opnum::from_number(number) else {
                    return bad($Opnum::Illegal, Nfsstat4::OpIllegal, None);
                };
                let minors = opnum.minor_versions();
                if minorversion < *minors.start() {
                    return bad($Opnum::Illegal, Nfsstat4::OpIllegal, None);
                }
                //= rfc8881-8.8-1 rfc8881-8.8-2
                if minorversion > *minors.end() {
                    return bad(opnum, Nfsstat4::NotSupp, None);
                }
                xdr::Decode::decode(decoder)
                    .or_else(|error| bad(opnum, Nfsstat4::BadXdr, Some(error)))
            }
        }

        $(#[$result_doc])*
        #[derive(Clone, Debug, PartialEq, Eq, xdr::Encode, xdr::Decode)]
        pub enum $Resop {
            $($(#[$doc])* #[xdr($number)] $name($res),)*
            /// The result of a number that belongs to no operation.
            #[xdr(10044)]
            Illegal($crate::v4::Res4<()>),
        }

        impl $Resop {
            /// Returns the number of the operation.
            pub const fn opnum(&self) -> $Opnum {
                match self { $($Resop::$name(_) => $Opnum::$name,)* $Resop::Illegal(_) => $Opnum::Illegal }
            }

            /// Returns the status.
            pub fn status(&self) -> $crate::v4::Nfsstat4 {
                match self {
                    $($Resop::$name(res) => $crate::v4::OpResult::status(res),)*
                    $Resop::Illegal(res) => $crate::v4::OpResult::status(res),
                }
            }

            /// Creates the result of an operation that has only a status.
            ///
            /// # Panics
            /// Panics if this result has a body for the status, which is OK for nearly all results.
            pub fn failure(opnum: $Opnum, status: $crate::v4::Nfsstat4) -> Self {
                match opnum {
                    $($Opnum::$name => $Resop::$name($crate::v4::OpResult::failure(status)),)*
                    $Opnum::Illegal => $Resop::Illegal($crate::v4::OpResult::failure(status)),
                }
            }
        }

        impl From<$crate::v4::BadOperation<$Opnum>> for $Resop {
            fn from(bad: $crate::v4::BadOperation<$Opnum>) -> Self {
                Self::failure(bad.opnum, bad.status)
            }
        }
    };
}
pub(crate) use operations;
