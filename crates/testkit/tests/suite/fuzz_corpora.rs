//! Replays the corpora of the fuzz targets.

use std::path::Path;

use rand::{Rng, SeedableRng, rngs::SmallRng};

const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz");

#[test]
fn every_input_of_every_corpus_passes() {
    for (name, target) in testkit::fuzz::TARGETS {
        let corpus = Path::new(FUZZ).join("corpus").join(name);
        let inputs = std::fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
        let mut count = 0;
        for input in inputs {
            let path = input.unwrap().path();
            let data = std::fs::read(&path).unwrap();
            if std::panic::catch_unwind(|| target(&data)).is_err() {
                panic!("{name} fails on {}", path.display());
            }
            count += 1;
        }
        assert!(count > 0, "there must be an input in {}", corpus.display());
        target(&[]);
    }
}

#[test]
fn every_target_has_its_files() {
    let manifest = std::fs::read_to_string(Path::new(FUZZ).join("Cargo.toml")).unwrap();
    for (name, _) in testkit::fuzz::TARGETS {
        assert!(Path::new(FUZZ).join("fuzz_targets").join(format!("{name}.rs")).exists(), "{name}");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} must be in fuzz/Cargo.toml");
    }
}

/// A simple fuzzer that runs in every test run, always with the same mutations.
#[test]
fn mutations_of_every_input_pass() {
    let mut rng = SmallRng::seed_from_u64(1813);
    for (name, target) in testkit::fuzz::TARGETS {
        let mut inputs: Vec<_> = std::fs::read_dir(Path::new(FUZZ).join("corpus").join(name)).unwrap().collect();
        inputs.sort_by_key(|input| input.as_ref().unwrap().path());
        let inputs: Vec<_> = inputs.into_iter().map(|input| std::fs::read(input.unwrap().path()).unwrap()).collect();
        for _ in 0..MUTATIONS {
            let mut data = inputs[rng.random_range(0..inputs.len())].clone();
            for _ in 0..rng.random_range(1..4) {
                mutate(&mut data, &inputs[rng.random_range(0..inputs.len())], &mut rng);
            }
            data.truncate(LEN_MAX);
            if std::panic::catch_unwind(|| target(&data)).is_err() {
                panic!("{name} fails on {}", data.escape_ascii());
            }
        }
    }
}

/// Mutates `data` a little: a byte, an interesting word, its length, or its end, which is then that of another input.
fn mutate(data: &mut Vec<u8>, other: &[u8], rng: &mut SmallRng) {
    let at = rng.random_range(0..=data.len());
    match rng.random_range(0..5) {
        0 if at < data.len() => data[at] = rng.random(),
        1 if at < data.len() => data[at] ^= 1 << rng.random_range(0..8),
        2 => {
            let words = [0, 1, 4, 64, 65, 0xff, 1 << 20, i32::MAX as u32, 1 << 31, u32::MAX - 3, u32::MAX];
            let word = words[rng.random_range(0..words.len())].to_be_bytes();
            let end = data.len().min(at + 4);
            data.splice(at..end, word);
        }
        3 => data.truncate(at),
        _ => {
            data.truncate(at);
            data.extend(&other[at.min(other.len())..]);
        }
    }
}

const MUTATIONS: usize = 300;
const LEN_MAX: usize = 16 << 10;
