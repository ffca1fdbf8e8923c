//! The guest's hardware as QEMU arguments: q35, an Intel IOMMU, SSDs behind root ports and a PCIe switch.

use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::path::{Path, PathBuf};

/// One NVMe SSD. On the command line: `serial=slow,size=64,iops=20,at=root`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Disk {
    /// Its serial number: guests find it by that, since the kernel numbers controllers in the order they answer.
    pub(crate) serial: String,
    /// In MiB; the image is sparse.
    pub(crate) size_mib: u64,
    /// I/Os per second that QEMU lets through: a fixed delay of 1/n s for one I/O after another.
    pub(crate) iops: Option<u32>,
    /// A blkdebug configuration: errors injected by QEMU.
    pub(crate) blkdebug: Option<PathBuf>,
    /// Controllers that share the namespace: 2 is a multipath SSD.
    pub(crate) paths: u8,
    /// On a root port of its own instead of below the switch.
    pub(crate) on_root: bool,
}

impl std::str::FromStr for Disk {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Disk> {
        let mut disk = Disk {
            serial: String::new(),
            size_mib: 256,
            iops: None,
            blkdebug: None,
            paths: 1,
            on_root: false,
        };
        for pair in text.split(',') {
            let (key, value) =
                pair.split_once('=').with_context(|| format!("{pair:?} in --disk is not KEY=VALUE"))?;
            match key {
                "serial" => disk.serial = value.to_owned(),
                "size" => disk.size_mib = value.parse().context("size= is in MiB")?,
                "iops" => disk.iops = Some(value.parse().context("iops= is a number")?),
                "blkdebug" => {
                    disk.blkdebug =
                        Some(std::fs::canonicalize(value).with_context(|| format!("blkdebug={value}"))?)
                }
                "paths" => disk.paths = value.parse().context("paths= is a number")?,
                "at" => disk.on_root = value == "root",
                other => bail!("--disk knows serial, size, iops, blkdebug, paths and at, not {other:?}"),
            }
        }
        let named = !disk.serial.is_empty() && disk.serial.bytes().all(|b| b.is_ascii_alphanumeric());
        ensure!(named && disk.serial.len() <= 20, "--disk needs serial= of 1 to 20 letters and digits");
        ensure!((1..=4).contains(&disk.paths), "paths= is 1 to 4");
        Ok(disk)
    }
}

/// The SSDs of a guest that asked for none: two below one switch, one on a root port.
pub(crate) fn default_disks() -> Vec<Disk> {
    let disk = |serial: &str, on_root| Disk {
        serial: serial.to_owned(),
        size_mib: 512,
        iops: None,
        blkdebug: None,
        paths: 1,
        on_root,
    };
    vec![disk("glake0", false), disk("glake1", false), disk("glake2", true)]
}

/// Size and shape of the guest.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    /// In MiB.
    pub(crate) memory_mib: u32,
    /// Virtual CPUs.
    pub(crate) cpus: u32,
    /// Two NUMA nodes instead of one.
    pub(crate) numa: bool,
    /// With an Intel IOMMU.
    pub(crate) iommu: bool,
    /// The SSDs.
    pub(crate) disks: Vec<Disk>,
    /// Arguments passed on to QEMU as they are.
    pub(crate) extra: Vec<String>,
}

impl Machine {
    /// How many NVMe controllers the guest sees.
    pub(super) fn controllers(&self) -> usize {
        self.disks.iter().map(|d| usize::from(d.paths)).sum()
    }

    /// QEMU's arguments for all of it; disk images are made in `folder`.
    pub(super) fn arguments(&self, folder: &Path) -> Result<Vec<String>> {
        let mut out: Vec<String> = Vec::new();
        let mut add = |line: &str| out.extend(line.split(' ').map(str::to_owned));
        // Interrupt remapping needs the split irqchip under KVM; one TCG thread, since QEMU 10.0's IOTLB aborts with more.
        add(
            "-machine q35,kernel-irqchip=split -accel tcg,thread=single -cpu max -nodefaults -display none -no-reboot",
        );
        add(&format!("-m {} -smp {}", self.memory_mib, self.cpus));
        if self.iommu {
            add("-device intel-iommu,intremap=on,caching-mode=on");
        }
        if self.numa {
            let half = self.memory_mib / 2;
            for node in 0..2 {
                add(&format!("-object memory-backend-ram,id=m{node},size={half}M"));
                let cpu = if self.cpus > 1 || node == 0 { format!(",cpus={node}") } else { String::new() };
                add(&format!("-numa node,nodeid={node}{cpu},memdev=m{node}"));
            }
        }
        add("-device pcie-root-port,id=up,slot=1,chassis=1 -device x3130-upstream,bus=up,id=switch");
        let mut slot = 2;
        for disk in &self.disks {
            disk.arguments(folder, &mut slot, &mut out)?;
        }
        out.extend(self.extra.iter().cloned());
        Ok(out)
    }
}

impl Disk {
    fn arguments(&self, folder: &Path, slot: &mut u32, out: &mut Vec<String>) -> Result<()> {
        let serial = &self.serial;
        let image = folder.join(format!("{serial}.img"));
        let file = File::create(&image).with_context(|| format!("making {}", image.display()))?;
        file.set_len(self.size_mib << 20)?;
        let mut push = |flag: &str, value: String| out.extend([flag.to_owned(), value]);
        let mut top = format!("{serial}-raw");
        let image = image.display();
        match &self.blkdebug {
            None => push(
                "-blockdev",
                format!("driver=raw,node-name={top},file.driver=file,file.filename={image},discard=unmap"),
            ),
            Some(config) => push(
                "-blockdev",
                format!(
                    "driver=blkdebug,node-name={top},config={},image.driver=raw,image.file.driver=file,image.file.filename={image}",
                    config.display()
                ),
            ),
        }
        if let Some(iops) = self.iops {
            push("-object", format!("throttle-group,id={serial}-limit,x-iops-total={iops}"));
            push(
                "-blockdev",
                format!("driver=throttle,node-name={serial}-slow,throttle-group={serial}-limit,file={top}"),
            );
            top = format!("{serial}-slow");
        }
        if self.paths > 1 {
            push("-device", format!("nvme-subsys,id={serial}-sub,nqn={serial}"));
        }
        for path in 0..self.paths {
            let bus = format!("{serial}-bus{path}");
            let (driver, parent) =
                if self.on_root { ("pcie-root-port", "pcie.0") } else { ("xio3130-downstream", "switch") };
            push("-device", format!("{driver},bus={parent},id={bus},slot={slot},chassis={slot}"));
            *slot += 1;
            let rest = if self.paths > 1 {
                format!("id={serial}-c{path},subsys={serial}-sub")
            } else {
                format!("drive={top}")
            };
            // mdts=8 lets one command move 1 MiB, as data-centre SSDs do.
            push("-device", format!("nvme,bus={bus},serial={serial},mdts=8,max_ioqpairs=8,{rest}"));
        }
        if self.paths > 1 {
            push("-device", format!("nvme-ns,drive={top},bus={serial}-c0,nsid=1,shared=on"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_read_from_its_pairs_and_a_wrong_key_is_named() {
        let disk: Disk = "serial=slow,size=64,iops=20,at=root".parse().unwrap();
        assert_eq!(
            (disk.serial.as_str(), disk.size_mib, disk.iops, disk.on_root),
            ("slow", 64, Some(20), true)
        );
        assert!("serial=a,colour=red".parse::<Disk>().unwrap_err().to_string().contains("colour"));
        assert!("size=64".parse::<Disk>().is_err());
        assert!("serial=a,b".parse::<Disk>().is_err());
    }

    #[test]
    fn each_disk_has_a_bus_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine {
            memory_mib: 512,
            cpus: 1,
            numa: false,
            iommu: true,
            disks: default_disks(),
            extra: Vec::new(),
        };
        let arguments = machine.arguments(folder.path()).unwrap().join(" ");
        for bus in ["bus=switch,id=glake0-bus0", "bus=switch,id=glake1-bus0", "bus=pcie.0,id=glake2-bus0"] {
            assert!(arguments.contains(bus), "{bus} is missing in {arguments}");
        }
    }
}
