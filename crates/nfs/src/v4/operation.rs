//! What makes a table of operations into types; for COMPOUND and CB_COMPOUND.

use xdr::DecodeError;

use super::status::Nfsstat4;

/// An operation that is not to be executed: what number its result has, and which status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadOperation<N> {
    /// The operation, or the one called ILLEGAL.
    pub opnum: N,
    /// OP_ILLEGAL, NOTSUPP or BADXDR.
    pub status: Nfsstat4,
    /// What is wrong with the bytes, for BADXDR.
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
            /// No operation at all: the result of a number that none has.
            Illegal = 10044,
        }

        impl $Opnum {
            /// All of them, in order, without ILLEGAL.
            pub const ALL: &[$Opnum] = &[$($Opnum::$name),*];

            /// The operation of this number; none has that of ILLEGAL.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some($Opnum::$name),)* _ => None }
            }

            /// Its name in the RFCs.
            pub const fn name(self) -> &'static str {
                match self { $($Opnum::$name => $text,)* $Opnum::Illegal => "ILLEGAL" }
            }

            /// The minor versions in which it is to be executed.
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
            /// Which operation it is.
            pub const fn opnum(&self) -> $Opnum {
                match self { $($Argop::$name { .. } => $Opnum::$name,)* }
            }

            /// Reads the next operation of a compound of this minor version.
            ///
            /// # Errors
            /// It has no such operation, or the arguments are malformed. Where a next one would begin is not known
            /// then; nor is it needed, since a compound ends with the first failure.
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
                // RFC 8881 §16.2.3: a number that this minor version does not have is illegal, also if a later has it.
                // One that only an earlier has is known, and must not be implemented: §17.
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
            /// No operation at all.
            #[xdr(10044)]
            Illegal($crate::v4::Res4<()>),
        }

        impl $Resop {
            /// Of which operation it is.
            pub const fn opnum(&self) -> $Opnum {
                match self { $($Resop::$name(_) => $Opnum::$name,)* $Resop::Illegal(_) => $Opnum::Illegal }
            }

            /// Its status.
            pub fn status(&self) -> $crate::v4::Nfsstat4 {
                match self {
                    $($Resop::$name(res) => $crate::v4::OpResult::status(res),)*
                    $Resop::Illegal(res) => $crate::v4::OpResult::status(res),
                }
            }

            /// The result of an operation that says only this.
            ///
            /// # Panics
            /// If the status comes with a body of its own in this result: OK, for nearly all.
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
