//! The probes in real kernels, against loads whose counts are known: from the load generator, from QEMU, or from the
//! kernel's own accounts. `cargo xtask test --stage lab` runs them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "tests")]

mod bare;
mod classic;
mod copy;
mod counts;
mod lab;
mod odd;
mod readings;
mod uvm_fentry;
mod uvm_probes;
mod uvm_tools;
mod uvm_xid;
mod xid;

use libtest_mimic::Arguments;

fn main() {
    let arguments = Arguments::from_args();
    let kernels = lab::kernels();
    if kernels.is_empty() {
        eprintln!("skipped: guests are booted by `cargo xtask test --stage lab`");
    }
    let suites = |k| {
        let probes = [counts::tests(k), classic::tests(k), odd::tests(k), bare::tests(k)];
        probes.into_iter().chain([
            copy::tests(k),
            uvm_tools::tests(k),
            uvm_probes::tests(k),
            uvm_fentry::tests(k),
            uvm_xid::tests(k),
            xid::tests(k),
        ])
    };
    let tests = kernels.iter().flat_map(suites).flatten();
    libtest_mimic::run(&arguments, tests.collect()).exit();
}
