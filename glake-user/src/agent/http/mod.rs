//! Answers over HTTP: read-only, small, and cheap for whoever floods it. A body is made once per reading and format.

mod auth;
mod body;
mod connections;
mod routes;

pub use body::Answerable;
pub use connections::{Limits, Server};

#[cfg(test)]
mod tests;
