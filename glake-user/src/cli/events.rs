//! `glake events`: GPU events (Xid and SXid reports, joined) kept on this host, and those of a saved kernel log.

use super::exit;
use super::out::{self, say};
use crate::clock::{Clock, SystemClock};
use crate::diagnose::xid::{join::Joiner, record::Record, saved, text};
use crate::error::{Error, Kind, Result};
use crate::events::xid::catalogue::{self, Entry};
use crate::host::inventory::Inventory;
use crate::telemetry::event_store;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// GPU events: Xid errors with the process, what came before and what to do.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    glake events list --since 24h           one line an event\n  \
    glake events show                       the newest in full\n  \
    glake events follow --json              each new or completed event as one JSON object\n  \
    dmesg --time-format iso | glake events explain -\n  \
    glake events code 79                    what that Xid means and what to do\n  \
    glake events explain /var/log/kern.log  the events of a saved kernel log, no agent needed\n\n\
    An Xid is an error report of the GPU driver. UVM page faults are not errors: glake uvm.")]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// One line an event, oldest first.
    List {
        #[command(flatten)]
        store: Store,
        /// Only events of this last time: 30m, 24h, 7d.
        #[arg(long, value_name = "TIME", value_parser = since)]
        since: Option<Duration>,
        /// One JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// One event in full: the newest, or the one whose id begins with ID.
    Show {
        #[command(flatten)]
        store: Store,
        /// Beginning of an id, as `list --json` prints it.
        id: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Each event as it comes, and again when it is complete. Ends with Ctrl-C.
    Follow {
        #[command(flatten)]
        store: Store,
        /// One JSON object a line.
        #[arg(long)]
        json: bool,
        /// Stop after this time.
        #[arg(long = "for", value_name = "TIME", value_parser = since)]
        limit: Option<Duration>,
    },
    /// What a code means and what to do about it; without CODE all that are known.
    Code {
        /// The number of an Xid.
        code: Option<u32>,
        /// One JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// The events of a saved kernel log (dmesg, journalctl -k, /dev/kmsg); `-` is standard input.
    Explain {
        /// The log.
        file: PathBuf,
        /// One JSON object a line.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Store {
    /// The folder where the agent keeps events.
    #[arg(long, value_name = "FOLDER", default_value = event_store::DEFAULT_FOLDER)]
    store: PathBuf,
}

fn since(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(format!("{text:?} is no time: write 30m, 24h or 7d")),
    };
    let seconds = number.parse::<u64>().ok().and_then(|n| n.checked_mul(scale));
    seconds.filter(|s| *s > 0).map(Duration::from_secs).ok_or_else(|| format!("{text:?} is out of range"))
}

/// Runs it.
///
/// # Errors
/// When the store or the log cannot be read.
pub(super) fn run(args: Args) -> Result<u8> {
    match args.what {
        What::List { store, since, json } => list(&store.store, since, json),
        What::Show { store, id, json } => show(&store.store, id.as_deref(), json),
        What::Follow { store, json, limit } => follow(&store.store, json, limit),
        What::Code { code, json } => explain_code(code, json),
        What::Explain { file, json } => explain(&file, json),
    }
}

/// The newest version of every record, oldest first.
///
/// # Errors
/// When the store cannot be read.
pub(crate) fn stored(folder: &Path) -> Result<Vec<Record>> {
    let found = event_store::read(folder)?;
    if found.damaged_bytes > 0 {
        let folder = folder.display();
        say(format_args!("glake: {folder}: {} bytes are damaged and were skipped", found.damaged_bytes));
    }
    if found.unknown > 0 {
        say(format_args!("glake: {} entries of a newer version were skipped", found.unknown));
    }
    let mut by_id = BTreeMap::<String, Record>::new();
    for payload in &found.records {
        match serde_json::from_slice::<Record>(payload) {
            Ok(record) => {
                by_id.insert(record.id.clone(), record);
            }
            Err(e) => say(format_args!("glake: one stored event does not read: {e}")),
        }
    }
    let mut records: Vec<Record> = by_id.into_values().collect();
    records.sort_by_key(|r| (r.at.realtime_ns, r.at.monotonic_ns));
    Ok(records)
}

/// A folder that is not there holds no answer: no agent ever kept events in it.
fn is_kept(folder: &Path) -> Result<()> {
    if folder.symlink_metadata().err().is_none_or(|e| e.kind() != std::io::ErrorKind::NotFound) {
        return Ok(());
    }
    Err(Error::new(Kind::Missing, format!("{} is not there: no agent has kept events in it", folder.display()))
        .remedy("start one (`sudo glake run`), or name its folder with --store; a saved kernel log: `glake events explain FILE`"))
}

fn list(folder: &Path, since: Option<Duration>, json: bool) -> Result<u8> {
    let now = SystemClock.now().realtime_ns;
    let from = since.map_or(0, |s| now.saturating_sub(u64::try_from(s.as_nanos()).unwrap_or(u64::MAX)));
    is_kept(folder)?;
    let records = stored(folder)?;
    let mut out = out::stdout();
    let chosen: Vec<&Record> = records.iter().filter(|r| r.at.realtime_ns >= from).collect();
    for record in &chosen {
        let line = if json { to_json(record)? } else { text::line(record) };
        writeln!(out, "{line}").map_err(out::failed)?;
    }
    out.flush().map_err(out::failed)?;
    if chosen.is_empty() {
        say(format_args!("glake: no events in {}", folder.display()));
    }
    Ok(exit::OK)
}

fn show(folder: &Path, id: Option<&str>, json: bool) -> Result<u8> {
    is_kept(folder)?;
    let records = stored(folder)?;
    let fits = |r: &&Record| id.is_none_or(|id| r.id.starts_with(id));
    let record = records.iter().rev().find(fits).ok_or_else(|| {
        let what =
            id.map_or_else(|| "no event".to_owned(), |id| format!("no event whose id begins with {id:?}"));
        Error::new(Kind::Missing, format!("{what} in {}", folder.display()))
            .remedy("glake events list --json")
    })?;
    let text = if json { to_json(record)? + "\n" } else { text::show(record) };
    let mut out = out::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(out::failed)?;
    Ok(exit::OK)
}

/// How often the store is looked at.
const LOOK: Duration = Duration::from_millis(200);

fn follow(folder: &Path, json: bool, limit: Option<Duration>) -> Result<u8> {
    let started = std::time::Instant::now();
    if let Err(e) = is_kept(folder) {
        say(format_args!("glake: waiting: {}", e.chain()));
    }
    let mut known: BTreeMap<String, Record> =
        stored(folder)?.into_iter().map(|r| (r.id.clone(), r)).collect();
    let mut size = size_of(folder);
    loop {
        if limit.is_some_and(|l| started.elapsed() >= l) {
            return Ok(exit::OK);
        }
        std::thread::sleep(LOOK);
        let now = size_of(folder);
        if now == size {
            continue;
        }
        size = now;
        for record in stored(folder)? {
            if known.get(&record.id) == Some(&record) {
                continue;
            }
            let text = if json { to_json(&record)? + "\n" } else { text::show(&record) + "\n" };
            let mut out = out::stdout();
            out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(out::failed)?;
            known.insert(record.id.clone(), record);
        }
    }
}

/// Length and identity of both files: a change means new frames.
fn size_of(folder: &Path) -> Vec<Option<(u64, u64)>> {
    use std::os::unix::fs::MetadataExt;
    ["events.old", "events.log"]
        .iter()
        .map(|n| std::fs::metadata(folder.join(n)).ok().map(|m| (m.ino(), m.len())))
        .collect()
}

fn explain_code(code: Option<u32>, json: bool) -> Result<u8> {
    let chosen: Vec<&Entry> =
        catalogue::CATALOGUE.iter().filter(|e| code.is_none_or(|code| e.code == code)).collect();
    if let (Some(code), true) = (code, chosen.is_empty()) {
        return Err(Error::new(Kind::Missing, format!("Xid {code} is not in the catalogue of this GLake"))
            .remedy("NVIDIA's list is at docs.nvidia.com/deploy/xid-errors; `glake events code` prints the known ones"));
    }
    let mut out = out::stdout();
    for entry in chosen {
        let line = if json { code_json(entry) } else { text::entry(entry, code.is_some()) };
        writeln!(out, "{line}").map_err(out::failed)?;
    }
    out.flush().map_err(out::failed)?;
    Ok(exit::OK)
}

fn code_json(entry: &Entry) -> String {
    serde_json::json!({
        "xid": entry.code,
        "meaning": entry.meaning,
        "action": entry.action.label(),
        "do_now": entry.action.sentence(),
        "note": entry.note,
        "only_follows": if entry.follows == catalogue::ANY { serde_json::json!("any") } else { entry.follows.into() },
    })
    .to_string()
}

fn explain(file: &Path, json: bool) -> Result<u8> {
    let bytes = if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin(), &mut bytes).map(|_| bytes)
    } else {
        std::fs::read(file)
    }
    .map_err(|e| Error::os(format!("reading {}", file.display()), e))?;
    refuse_packed(&bytes, file)?;
    let log = String::from_utf8_lossy(&bytes);
    // The log may be another host's: this one's GPUs must not lend it their UUIDs.
    let host = Inventory { hostname: "(saved log)".into(), ..Inventory::default() };
    let mut joiner = Joiner::new(host, Vec::new());
    let only = || Err("the log alone tells, and has none in the 10 s before".to_owned());
    joiner.set_coverage(["aer", "iommu"].map(|family| (family.to_owned(), only())).into(), 0);
    let found = saved::read(log.lines(), &mut joiner);
    let mut out = out::stdout();
    for record in &found.records {
        let text = if json { to_json(record)? + "\n" } else { text::show(record) + "\n" };
        out.write_all(text.as_bytes()).map_err(out::failed)?;
    }
    out.flush().map_err(out::failed)?;
    for finding in &found.findings {
        let at = finding.pci.as_ref().map_or(String::new(), |pci| format!("{pci}: "));
        say(format_args!(
            "glake: {at}{}. {}. DO NOW {}",
            finding.what,
            finding.evidence.join("; "),
            finding.do_now
        ));
    }
    say(format_args!(
        "glake: {} lines, {} reports of GPUs and NVSwitches, {} events. A log is rate-limited: a lower \
         bound. What came before is known from this log alone",
        found.lines,
        found.reports,
        found.records.len()
    ));
    if found.without_time > 0 {
        say(format_args!(
            "glake: {} reports have no time that could be read: joined by their order alone",
            found.without_time
        ));
    }
    Ok(exit::OK)
}

/// A rotated log or a journal holds no line that could be read: "no events" would be a lie about it.
fn refuse_packed(bytes: &[u8], file: &Path) -> Result<()> {
    const KINDS: [(&[u8], &str, &str); 5] = [
        (b"\x1f\x8b", "compressed (gzip)", "zcat"),
        (b"\xfd7zXZ\0", "compressed (xz)", "xzcat"),
        (b"\x28\xb5\x2f\xfd", "compressed (zstd)", "zstdcat"),
        (b"BZh", "compressed (bzip2)", "bzcat"),
        (b"LPKSHHRH", "a journal of systemd", "journalctl -k -o short-iso --file"),
    ];
    let Some((_, what, tool)) = KINDS.iter().find(|(mark, ..)| bytes.starts_with(mark)) else {
        return Ok(());
    };
    let file = file.display();
    Err(Error::new(Kind::BadInput, format!("{file} is {what}, not text"))
        .remedy(format!("{tool} {file} | glake events explain -")))
}

fn to_json(record: &Record) -> Result<String> {
    serde_json::to_string(record)
        .map_err(|e| Error::new(Kind::BadInput, "writing an event as JSON").because(e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::event_store::{DEFAULT_LIMIT, EventStore, RECORD};

    fn record(id: &str, at_ns: u64) -> Record {
        let mut r = Record { id: id.into(), code: 31, ..Record::default() };
        r.at.realtime_ns = at_ns;
        r
    }

    #[test]
    fn the_newest_version_of_a_record_is_the_one_that_counts() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut store = EventStore::open(dir.path(), DEFAULT_LIMIT).expect("opens");
        let mut put = |r: &Record| {
            store.append(RECORD, to_json(r).expect("JSON").as_bytes()).expect("written");
        };
        put(&record("b", 2));
        put(&record("a", 1));
        put(&Record { closed: true, ..record("b", 2) });
        let found = stored(dir.path()).expect("readable");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].id, "a");
        assert!(found[1].closed);
    }

    #[test]
    fn records_of_newer_and_older_versions_both_read() {
        let newer = r#"{"schema":9,"id":"x","code":31,"something_new":{"a":1},"who":{"pid":5,"thread":7}}"#;
        let r: Record = serde_json::from_str(newer).expect("unknown keys are ignored");
        assert_eq!(r.who.and_then(|w| w.pid), Some(5));
        let older: Record = serde_json::from_str(r#"{"id":"x"}"#).expect("missing keys have defaults");
        assert_eq!(older.code, 0);
    }

    #[test]
    fn times_read_as_people_write_them() {
        assert_eq!(since("24h"), Ok(Duration::from_secs(86_400)));
        assert_eq!(since("7d"), Ok(Duration::from_secs(604_800)));
        for bad in ["", "7", "0h", "1w", "99999999999999999999d"] {
            assert!(since(bad).is_err(), "{bad:?}");
        }
    }
}
