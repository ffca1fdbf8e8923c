//! From Xid reports to one record an operator can act on: who, what, where, what came before, what it only followed.

pub mod activity;
pub mod condition;
pub mod join;
pub mod judge;
pub mod record;
pub mod saved;
pub mod text;

#[cfg(test)]
mod case_tests;
