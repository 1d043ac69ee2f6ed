//! The simulation: the real library in virtual time, on models of stores, under one seed.

pub mod bucket;
pub mod campaign;
pub mod cast;
pub mod check;
pub mod disk;
pub mod gate;
pub mod history;
pub mod index;
pub mod node;
pub mod plan;
pub mod recorded;
pub mod run;
pub mod seam;
pub mod shrink;
pub mod stage;
pub mod synced;
pub mod timeline;
pub mod world;
