//! The metric tree: a table of families, a ledger that adds up what happened, and two text formats made from one tree.
//!
//! To add a family: a `static` row in [`table`] and its line in [`table::TABLE`], then a function in `families` that
//! books into the [`ledger::Ledger`] (counters, histograms) or reads the newest sample (gauges).

pub mod accept;
pub mod booking;
mod families;
pub mod ledger;
pub mod reference;
pub mod table;
pub mod text;
pub mod tree;

#[cfg(test)]
mod heap_tests;
#[cfg(test)]
mod nvml_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod uvm_tests;
