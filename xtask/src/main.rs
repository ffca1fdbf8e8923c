//! The developers' door. `cargo xtask help` lists what is behind it; `docs/developing.md` tells the rest.
//!
//! Every command sets up what it needs and nothing more ([`setup`]), so a fresh clone and a Rust toolchain are
//! enough to start with any of them.
mod bench;
mod build;
mod check;
mod cmd;
mod dist;
mod files;
mod run;
mod say;
mod setup;
mod shipped;
mod test;
mod tree;
mod vm;
mod wheel;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use setup::rust_src;
use tree::Tree;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, runs and tests GLake", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Get the tools that a build needs; every other command does this by itself
    Setup {
        /// Where the source of Rust's core library comes from
        #[arg(long, value_enum, default_value_t)]
        rust_src: rust_src::From,
    },
    /// Build the eBPF programs and print the path of the object
    Ebpf,
    /// Build the binary with the eBPF programs in it and print its path
    Build {
        /// Optimised, as it is shipped
        #[arg(long)]
        release: bool,
    },
    /// Build glake and run it here, or in a guest
    Run(run::Args),
    /// Run everything that the CI runs
    Test(test::Args),
    /// Check the rules of this repository: format, rooms, unsafe, licences, clippy, docs
    Check,
    /// Run a benchmark on a release build; without a name, list them
    Bench(bench::Args),
    /// Pack a release: binary, preload library, manual pages, completions, licences; the wheel; checksums
    Dist,
    /// Build the Python package and print the wheel's path
    Wheel {
        /// Unoptimised: quick to build, for tests
        #[arg(long)]
        dev: bool,
    },
    /// Run a command in a guest with a real kernel, NVMe SSDs and an IOMMU
    Vm(Box<vm::Args>),
}

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(code) => code,
        Err(e) => {
            say::error(&e);
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> Result<ExitCode> {
    let tree = Tree::find()?;
    match command {
        Command::Setup { rust_src } => {
            setup::tools(&tree, rust_src)?;
            say::step("setup", "all tools are in place");
        }
        Command::Ebpf => println!("{}", build::ebpf(&tree)?.display()),
        Command::Build { release } => println!("{}", build::glake(&tree, release.into())?.display()),
        Command::Run(args) => return Ok(exit_code(run::run(&tree, &args)?)),
        Command::Test(args) => return test::run(&tree, &args),
        Command::Check => return check::run(&tree),
        Command::Bench(args) => bench::run(&tree, &args)?,
        Command::Dist => dist::run(&tree)?,
        Command::Wheel { dev } => println!("{}", wheel::build(&tree, (!dev).into())?.display()),
        Command::Vm(args) => return Ok(exit_code(vm::run(&tree, &args)?)),
    }
    Ok(ExitCode::SUCCESS)
}

/// A child's exit status as ours.
fn exit_code(status: i32) -> ExitCode {
    u8::try_from(status).map_or(ExitCode::FAILURE, ExitCode::from)
}
