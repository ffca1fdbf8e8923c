//! The developers' door: `cargo xtask run | test | check | vm | bench | setup`.

mod vm;

use clap::Parser;

#[derive(Parser)]
enum Xtask {
    /// Run a command in a guest with a real kernel, NVMe SSDs and an IOMMU.
    Vm(Box<vm::Args>),
}

fn main() {
    let done = match Xtask::parse() {
        Xtask::Vm(args) => vm::run(&args),
    };
    std::process::exit(done.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        2
    }));
}
