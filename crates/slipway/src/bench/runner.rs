//! [`run`]: measures every series at every point, in rounds.
//!
//! A round visits each point once, and each series once at that point, so that values to be compared are measured
//! within seconds of each other. Each round begins with another series, so that no series always follows a pause.

use super::{point::Point, sample::Sample};
use crate::exit::Failure;

/// A configuration that can be measured.
pub trait Subject {
    /// Measures one run.
    ///
    /// # Errors
    /// The measurement failed. The whole benchmark ends.
    fn measure(&mut self, point: &Point) -> Result<Measured, Failure>;
}

impl<S: Subject + ?Sized> Subject for Box<S> {
    fn measure(&mut self, point: &Point) -> Result<Measured, Failure> {
        (**self).measure(point)
    }
}

/// The result of one run.
pub enum Measured {
    /// A sample.
    Sample(Sample),
    /// This subject does not support the point, with the reason. The other subjects continue.
    Unable(String),
}

/// All runs of one subject at one point.
pub enum Cell {
    /// One sample for each round.
    Samples(Vec<Sample>),
    /// The reason if there are none.
    Unable(String),
}

/// Measures. The cells are in the order of the points, and for each point in that of the subjects.
///
/// # Errors
/// The error of a subject.
pub fn run<S: Subject>(
    subjects: &mut [S],
    points: &[Point],
    rounds: u32,
    mut done: impl FnMut(),
) -> Result<Vec<Vec<Cell>>, Failure> {
    let row = || subjects.iter().map(|_| Cell::Samples(Vec::new())).collect();
    let mut cells: Vec<Vec<Cell>> = points.iter().map(|_| row()).collect();
    for round in 0..rounds as usize {
        for (point, cells) in points.iter().zip(&mut cells) {
            for turn in 0..subjects.len() {
                let at = (round + turn) % subjects.len();
                if let Cell::Samples(samples) = &mut cells[at] {
                    match subjects[at].measure(point)? {
                        Measured::Sample(sample) => samples.push(sample),
                        Measured::Unable(why) => cells[at] = Cell::Unable(why),
                    }
                }
                done();
            }
        }
    }
    Ok(cells)
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc, time::Duration};

    use super::super::{point::Operation, sample::histogram};
    use super::*;

    /// Takes no time, and records its calls.
    struct Fake {
        name: char,
        most: usize,
        log: Rc<RefCell<String>>,
    }

    impl Subject for Fake {
        fn measure(&mut self, point: &Point) -> Result<Measured, Failure> {
            self.log.borrow_mut().push(self.name);
            match point.block {
                0 => Err(Failure::failed("broken")),
                block if block > self.most => Ok(Measured::Unable(format!("at most {}", self.most))),
                block => Ok(Measured::Sample(Sample {
                    operations: 1,
                    bytes: block as u64,
                    elapsed: Duration::from_nanos(1),
                    client_cpu: Duration::ZERO,
                    server_cpu: None,
                    data_server_cpu: None,
                    data_server_calls: None,
                    memory_bytes: None,
                    latency: histogram(),
                })),
            }
        }
    }

    fn subjects(log: &Rc<RefCell<String>>) -> [Fake; 3] {
        [('a', 9), ('b', 1), ('c', 9)].map(|(name, most)| Fake { name, most, log: log.clone() })
    }

    #[test]
    fn series_alternate_and_unsupported_points_are_tried_once() {
        let log = Rc::new(RefCell::new(String::new()));
        let points = [1, 2].map(|block| Point::new(Operation::Read, block, 1));
        let mut done = 0;
        let cells = run(&mut subjects(&log), &points, 3, || done += 1).unwrap();
        // b does not support the second point, and is not called again for it.
        assert_eq!(log.borrow().as_str(), "abcabc".to_owned() + "bcaca" + "cabca");
        assert_eq!(done, 18, "progress must include unsupported points");
        assert!(matches!(&cells[0][1], Cell::Samples(samples) if samples.len() == 3));
        assert!(matches!(&cells[1][1], Cell::Unable(why) if why == "at most 1"));
        assert!(matches!(&cells[1][2], Cell::Samples(samples) if samples.len() == 3 && samples[0].bytes == 2));
    }

    #[test]
    fn an_error_ends_the_run() {
        let log = Rc::new(RefCell::new(String::new()));
        let points = [Point::new(Operation::Read, 0, 1)];
        assert_eq!(run(&mut subjects(&log), &points, 3, || ()).err().unwrap().message, "broken");
        assert_eq!(log.borrow().as_str(), "a");
    }
}
