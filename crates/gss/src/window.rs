//! [`Window`]: the sequence numbers that a server has received on one context (RFC 2203 §5.3.3.1).
//!
//! Only a sequence number whose verifier is correct may be passed to it. Otherwise a forged call could move the window.

/// The highest sequence number of a context, and which of the [`WINDOW`] highest have been received.
#[derive(Clone, Debug, Default)]
pub struct Window {
    highest: Option<u32>,
    /// The bit of a sequence number is at its remainder by [`WINDOW`].
    received: [u64; WINDOW as usize / 64],
}

impl Window {
    /// Records a sequence number. Returns `false` if it has been received before, or is below the window. Such a call
    /// must be dropped without a reply.
    pub fn admit(&mut self, sequence: u32) -> bool {
        match self.highest {
            Some(highest) if sequence <= highest => {
                if highest - sequence >= WINDOW || self.is_received(sequence) {
                    return false;
                }
            }
            Some(highest) if sequence - highest < WINDOW => {
                (highest + 1..sequence).for_each(|skipped| self.clear(skipped));
                self.highest = Some(sequence);
            }
            _ => {
                self.received = Default::default();
                self.highest = Some(sequence);
            }
        }
        let (word, bit) = place(sequence);
        self.received[word] |= bit;
        true
    }

    fn is_received(&self, sequence: u32) -> bool {
        let (word, bit) = place(sequence);
        self.received[word] & bit != 0
    }

    fn clear(&mut self, sequence: u32) {
        let (word, bit) = place(sequence);
        self.received[word] &= !bit;
    }
}

fn place(sequence: u32) -> (usize, u64) {
    let at = sequence % WINDOW;
    ((at / 64) as usize, 1 << (at % 64))
}

/// The length of the window. It is larger than the number of calls that a client usually has outstanding, because calls
/// can be executed in another order than they were sent: a long call over RDMA is read after a short one was received.
pub const WINDOW: u32 = 1024;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_number_is_admitted_once_and_not_below_the_window() {
        let mut window = Window::default();
        assert!(window.admit(5));
        assert!(!window.admit(5), "a replay");
        assert!(window.admit(3), "an earlier number within the window");
        assert!(window.admit(5 + WINDOW - 1));
        assert!(!window.admit(5), "a replay at the lower edge");
        assert!(window.admit(6), "the skipped numbers have not been received");
        assert!(window.admit(5 + WINDOW));
        assert!(!window.admit(5), "below the window");
        assert!(window.admit(u32::MAX), "a jump moves the window");
        assert!(!window.admit(5 + WINDOW));
        assert!(window.admit(u32::MAX - WINDOW + 1) && !window.admit(u32::MAX - WINDOW));
    }

    proptest! {
        #[test]
        fn window_equals_the_set_of_received_numbers(
            numbers in prop::collection::vec(prop_oneof![0u32..40, 900u32..1200, 4000u32..9000], 1..400)
        ) {
            let (mut window, mut received, mut highest) = (Window::default(), BTreeSet::new(), 0);
            for number in numbers {
                let below = number.checked_add(WINDOW).is_some_and(|end| end <= highest);
                let expected = !below && !received.contains(&number);
                prop_assert_eq!(window.admit(number), expected, "{}", number);
                received.insert(number);
                highest = highest.max(number);
            }
        }
    }
}
