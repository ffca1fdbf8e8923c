//! `cargo xtask vm`: a command in a guest with a real Debian kernel, NVMe SSDs behind a PCIe switch and an IOMMU.
//! No root, no KVM and no hardware needed: everything is emulated, so counts are exact and times mean nothing.

mod boot;
mod cpio;
mod guest;
mod kernel;
mod machine;
mod modules;
mod qemu;
mod uvm;

use anyhow::Result;
use boot::Job;
use guest::File;
use kernel::Kernel;
use machine::{Disk, Machine};
use std::path::PathBuf;
use std::time::Duration;

use crate::{build, cmd, tree::Tree};

/// Arguments of `cargo xtask vm`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// `lts` (6.12), `newest` (7.3), or a version.
    #[arg(long, default_value = "lts")]
    kernel: String,
    /// Native NVMe multipath: y (the kernel's default) or n.
    #[arg(long, value_parser = ["y", "n"], default_value = "y")]
    nvme_multipath: String,
    /// More kernel arguments.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    cmdline: String,
    /// A file for the guest, as HOST or HOST:GUEST; a program brings its libraries. Without GUEST it goes to /files.
    #[arg(long = "file", visible_alias = "files")]
    files: Vec<File>,
    /// A kernel module to have at hand (`modprobe NAME` in the guest).
    #[arg(long = "module")]
    modules: Vec<String>,
    /// An SSD: serial=NAME[,size=MIB][,iops=N][,blkdebug=FILE][,paths=N][,at=root]. Default: glake0, glake1, glake2.
    #[arg(long = "disk")]
    disks: Vec<Disk>,
    /// Guest memory in MiB.
    #[arg(long, default_value_t = 2048)]
    memory: u32,
    /// Virtual CPUs.
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Two NUMA nodes.
    #[arg(long)]
    numa: bool,
    /// Without an IOMMU.
    #[arg(long)]
    no_iommu: bool,
    /// More arguments for QEMU, separated by spaces.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    qemu: String,
    /// Seconds after which the guest is stopped.
    #[arg(long, default_value_t = 120)]
    timeout: u64,
    /// Folder that receives what the command left in /out, the kernel log and the console.
    #[arg(long)]
    out: Option<PathBuf>,
    /// With NVIDIA's nvidia-uvm module of this driver release (550), a stand-in for nvidia.ko and /bin/uvmload.
    #[arg(long)]
    uvm: Option<String>,
    /// Do not build and bring along `glake` and the test programs.
    #[arg(long)]
    bare: bool,
    /// Only say which kernel release the name stands for.
    #[arg(long)]
    resolve: bool,
    /// The command and its arguments.
    #[arg(last = true, required_unless_present = "resolve")]
    command: Vec<String>,
}

/// Runs the command in a guest and returns its exit status.
pub(crate) fn run(tree: &Tree, args: &Args) -> Result<i32> {
    let cache = &tree.cache;
    let kernel = Kernel::get(cache, &args.kernel)?;
    if args.resolve {
        println!("{}", kernel.release);
        return Ok(0);
    }
    let mut files = if args.bare { Vec::new() } else { programs(tree)? };
    if let Some(driver) = &args.uvm {
        files.extend(uvm::get(cache, &kernel, driver)?);
    }
    files.extend(args.files.iter().cloned());
    let machine = Machine {
        memory_mib: args.memory,
        cpus: args.cpus,
        numa: args.numa,
        iommu: !args.no_iommu,
        disks: if args.disks.is_empty() { machine::default_disks() } else { args.disks.clone() },
        extra: args.qemu.split_whitespace().map(str::to_owned).collect(),
    };
    let cmdline = format!("nvme_core.multipath={} {}", args.nvme_multipath.to_uppercase(), args.cmdline);
    let job = Job {
        kernel: &kernel,
        machine: &machine,
        cmdline: &cmdline,
        files: &files,
        modules: &args.modules,
        script: &script(&args.command),
        out: args.out.as_deref(),
        deadline: Duration::from_secs(args.timeout),
    };
    job.run(cache)
}

/// Our programs, built now: `glake` with its probes, the load generator, and the probes on a string.
fn programs(tree: &Tree) -> Result<Vec<File>> {
    let object = build::ebpf(tree)?;
    let packages = ["build", "--quiet", "-p", "glake", "-p", "glake-tests", "--bins"];
    cmd::run(build::cargo(tree, Some(&object)).args(packages))?;
    let program = |name: &str| File { from: tree.target.join("debug").join(name), to: format!("bin/{name}") };
    Ok(["glake", "ioload", "sampler"].map(program).into())
}

/// The command as a shell line in which every word stands for itself.
fn script(command: &[String]) -> String {
    let quoted: Vec<String> =
        command.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
    format!("exec {}\n", quoted.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_guest_as_they_were_typed() {
        let words = ["sh", "-c", "echo 'a b' $HOME"].map(str::to_owned);
        assert_eq!(script(&words), "exec 'sh' '-c' 'echo '\\''a b'\\'' $HOME'\n");
    }
}
