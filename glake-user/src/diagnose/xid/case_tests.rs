//! Xid incidents that people met, each with its log and what is right to say of it: a table to be read.

use super::condition::Condition;
use super::join::Joiner;
use super::judge::Past;
use super::record::Record;
use super::{saved, text};
use crate::clock::Stamp;
use crate::host::inventory::Inventory;

/// What NVML said of a GPU at that time.
#[derive(Clone, Copy)]
struct Told {
    pci: &'static str,
    rows: Option<u32>,
    remap_failed: bool,
    corrected: Option<u64>,
}

/// One boot of the host: what NVML said, and its log.
type Boot = (Option<Told>, &'static str);

/// A record that must come out: code, action, and codes folded in.
type Verdict = (u32, &'static str, &'static [u32]);

struct Case {
    number: &'static str,
    boots: &'static [Boot],
    /// All records of the last boot, oldest first.
    records: &'static [Verdict],
    /// What the last record and the findings must say.
    says: &'static [&'static str],
    /// And must not.
    never: &'static [&'static str],
}

macro_rules! log {
    ($name:literal) => {
        include_str!(concat!("../../../../tests/data/cases/", $name))
    };
}

const fn rows(rows: u32, remap_failed: bool, pci: &'static str) -> Option<Told> {
    Some(Told { pci, rows: Some(rows), remap_failed, corrected: None })
}

const CASES: &[Case] = &[
    Case {
        number: "E01: three lines without a code, another GPU's line between them, then a 79",
        boots: &[(None, log!("e01.log"))],
        records: &[(31, "restart_app", &[]), (79, "restart_node", &[])],
        says: &[],
        never: &[],
    },
    Case {
        number: "E03: one place in memory fails under four programs and across a reboot, rows 11 then 12",
        boots: &[
            (rows(11, false, "0000:9c:00.0"), log!("e03-before-reboot.log")),
            (rows(12, false, "0000:9c:00.0"), log!("e03-after-reboot.log")),
        ],
        records: &[(48, "contact_support", &[63, 94, 154, 171])],
        says: &[
            "drain this GPU",
            "replaced",
            "rose from 11 to 12",
            "the same place each time: FBPA 9 subpartition 1",
            "Software is not suspect",
        ],
        never: &["restart the application"],
    },
    Case {
        number: "E05: GSP timeouts for a minute after a GSP error",
        boots: &[(None, log!("e05.log"))],
        records: &[(120, "reset_gpu", &[119])],
        says: &["Xid 119 x5"],
        never: &[],
    },
    Case {
        number: "E07: a row remap failed, eight rows used up, NVML's failure flag set",
        boots: &[(rows(8, true, "0000:19:00.0"), log!("e07.log"))],
        records: &[(64, "reset_gpu", &[])],
        says: &["reset it, once", "8 rows remapped", "replaced if the flag stays", "cloud instance"],
        never: &[],
    },
    Case {
        number: "E07, after the reset: the flag is still set",
        boots: &[
            (rows(8, true, "0000:19:00.0"), log!("e07.log")),
            (rows(8, true, "0000:19:00.0"), log!("e07.log")),
        ],
        records: &[(64, "contact_support", &[])],
        says: &["have it replaced", "a reset does not cure"],
        never: &[],
    },
    Case {
        number: "E09 (i): one MMU fault",
        boots: &[(None, log!("e09-once.log"))],
        records: &[(31, "restart_app", &[])],
        says: &["restart the application", "Not hardware unless it repeats here under other jobs"],
        never: &["diagnostics"],
    },
    Case {
        number: "E09 (ii): five on one GPU, each under another job",
        boots: &[(None, log!("e09-five-jobs.log"))],
        records: &[
            (31, "restart_app", &[]),
            (31, "restart_app", &[]),
            (31, "contact_support", &[]),
            (31, "contact_support", &[]),
            (31, "contact_support", &[]),
        ],
        says: &["run field diagnostics on this GPU", "5 times in 30 days", "5 different jobs"],
        never: &[],
    },
    Case {
        number: "E09 (iii): five GPUs under one job",
        boots: &[(None, log!("e09-five-gpus.log"))],
        records: &[
            (31, "restart_app", &[]),
            (31, "restart_app", &[]),
            (31, "restart_app", &[]),
            (31, "restart_app", &[]),
            (31, "restart_app", &[]),
        ],
        says: &["check the application", "5 GPUs"],
        never: &["diagnostics"],
    },
    Case {
        number: "E11: 48, 64, 62, 171 and 154 within a minute",
        boots: &[(None, log!("e11.log"))],
        records: &[(48, "reset_gpu", &[62, 64, 154, 171])],
        says: &["if the reset is refused, power-cycle", "The driver now asks: restart the machine"],
        never: &[],
    },
    Case {
        number: "E13: off the bus three times in five days, AER quiet, the card cool",
        boots: &[(None, log!("e13.log"))],
        records: &[(79, "restart_node", &[154]), (79, "restart_node", &[154]), (79, "restart_node", &[154])],
        says: &[
            "PCIe AER reports: none in the 10 s before",
            "does not tell why",
            "this device in the 30 days before: Xid 79 x2",
        ],
        never: &["heat", "thermal", "signal integrity", "overheat"],
    },
    Case {
        number: "E15: the recorded burst of 16 x 13 and one 43, two memory-cgroup kills after it",
        boots: &[(None, include_str!("../../../../tests/data/kernel-logs/xid-13-burst.dmesg-iso.txt"))],
        records: &[(13, "restart_app", &[43])],
        says: &["Xid 13 x16", "Xid 43 x1", "Out Of Range Address on 6 SMs"],
        never: &["replace", "oom", "Out of memory"],
    },
    Case {
        number: "E17: 62 on a card with 236,795 corrected errors and six 79",
        boots: &[
            (None, log!("e17-history.log")),
            (
                Some(Told { pci: "0000:41:00.0", rows: None, remap_failed: false, corrected: Some(236_795) }),
                log!("e17-now.log"),
            ),
        ],
        records: &[(62, "reset_gpu", &[])],
        says: &[
            "Xid 79 x6",
            "236,795 corrected ECC errors",
            "suspect hardware and power before software, and retest on another GPU",
        ],
        never: &[],
    },
    Case {
        number: "E19, first weeks: 300 replay timeouts in a second on the root port, then the GPU is gone",
        boots: &[(None, log!("e19-corrected.log"))],
        records: &[(79, "restart_node", &[])],
        says: &[
            "aer 0000:00:03.0 corrected: replay timer timeout x300",
            "corrects errors by the hundred",
            "300 corrected",
        ],
        never: &["PCIe AER reports: none"],
    },
    Case {
        number: "E19, weeks later: a fatal report on the same link, status 0x4020",
        boots: &[(None, log!("e19-fatal.log"))],
        records: &[],
        says: &[
            "fatal: surprise down, completion timeout",
            "slot, riser, cable, board",
            "went from errors that were corrected",
        ],
        never: &[],
    },
];

fn condition(told: Told) -> (String, Condition) {
    let read = Condition {
        read_at: Stamp { monotonic_ns: 1, realtime_ns: 1 },
        ecc_corrected: told.corrected,
        ecc_uncorrected: told.corrected.map(|_| 0),
        rows_correctable: told.rows.map(|_| 0),
        rows_uncorrectable: told.rows,
        remap_failure: told.rows.map(|_| told.remap_failed),
        ..Condition::default()
    };
    (told.pci.to_owned(), read)
}

/// The boots one after another, with only the stored records between them.
fn last_boot(case: &Case) -> saved::Read {
    let mut kept: Vec<String> = Vec::new();
    let mut found = saved::Read::default();
    for (told, log) in case.boots {
        let stored = kept.iter().map(|json| serde_json::from_str::<Record>(json).expect("it reads"));
        let mut joiner = Joiner::new(Inventory::default(), stored.map(|r| Past::of(&r)).collect());
        joiner.set_coverage(["aer", "iommu", "nvme"].map(|f| (f.to_owned(), Ok(()))).into(), 0);
        joiner.set_conditions(told.iter().map(|told| condition(*told)).collect());
        found = saved::read(log.lines(), &mut joiner);
        kept.extend(found.records.iter().map(|r| serde_json::to_string(r).expect("JSON")));
    }
    found
}

/// What is wrong with the answer to a case.
fn wrong(case: &Case) -> Vec<String> {
    let found = last_boot(case);
    let verdict =
        |r: &Record| (r.code, r.action.clone(), r.folded().map(|(code, _)| code).collect::<Vec<_>>());
    let records: Vec<_> = found.records.iter().map(verdict).collect();
    let right: Vec<_> = case.records.iter().map(|r| (r.0, r.1.to_owned(), r.2.to_vec())).collect();
    let mut said = found.records.last().map(text::show).unwrap_or_default();
    for finding in &found.findings {
        said.push_str(&format!("{}; {}; {}\n", finding.what, finding.evidence.join("; "), finding.do_now));
    }
    let other = (records != right).then(|| format!("{}: records {records:?}, not {right:?}", case.number));
    let missing = case.says.iter().filter(|part| !said.contains(**part));
    let missing = missing.map(|part| format!("{}: {part:?} is not in\n{said}", case.number));
    let too_much = case.never.iter().filter(|part| said.contains(**part));
    let too_much = too_much.map(|part| format!("{}: {part:?} is in\n{said}", case.number));
    other.into_iter().chain(missing).chain(too_much).collect()
}

#[test]
fn every_incident_gets_its_right_answer() {
    let wrong: Vec<String> = CASES.iter().flat_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
