//! State that all protocols share: locks and share reservations.

pub mod locks;
