//! `glake replay-alloc` on recordings as users have them.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use glake_tests::binary::{data, path, run};
use serde_json::Value;

fn model<'a>(json: &'a Value, name: &str) -> &'a Value {
    let models = json["models"].as_array().expect("models");
    models.iter().find(|m| m["name"] == name).unwrap_or_else(|| panic!("no model {name}: {json:#}"))
}

#[test]
fn a_training_run_is_replayed_into_three_allocators() {
    let ran = run(&["replay-alloc", &data("snapshots/train_recompute.pickle.xz"), "--json"], "");
    let json = ran.json();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(json["check"]["recorded_peak_reserved_bytes"], json["check"]["model_peak_reserved_bytes"]);
    assert_eq!(model(&json, "default")["peak_reserved_bytes"], 69_692_555_264u64);
    let gib =
        |name: &str| model(&json, name)["peak_reserved_bytes"].as_f64().unwrap_or(0.0) / f64::from(1 << 30);
    // What torch 2.11 itself reserved with expandable segments in the same run.
    assert!((gib("expandable_segments") - 25.531).abs() < 0.01, "{}", gib("expandable_segments"));
    assert!(gib("glake") < gib("expandable_segments"), "{}", gib("glake"));
    assert_eq!((&json["verdict"], &json["complete_from_process_start"]), (&"helps".into(), &true.into()));
    for key in ["peak_allocated_bytes", "allocated_to_reserved_ratio", "driver_calls", "driver_us"] {
        assert!(model(&json, "glake")[key].as_f64().is_some_and(|n| n > 0.0), "{key}");
    }
}

#[test]
fn a_run_with_nothing_to_gain_is_told_so_with_what_would_help() {
    let file = data("snapshots/medium_256_training.pickle.xz");
    let json = run(&["simulate", &file, "--json"], "").json();
    assert_eq!(json["verdict"], "no-gain");
    let end = &json["at_end"];
    assert_eq!((&end["segments"], &end["reserved_bytes"]), (&495.into(), &9_265_217_536u64.into()));
    assert_eq!(
        (&end["wholly_free_bytes"], &end["stranded_bytes"]),
        (&2_166_358_016u64.into(), &260_914_688.into())
    );
    assert_eq!(end["stitchable_bytes"], 249_561_088);
    let screen = run(&["replay-alloc", &file], "").stdout;
    for part in
        ["equal to the byte", "VERDICT  Nothing to gain", "empty_cache() gives 2.02 GiB back (23 %)", "2.7 %"]
    {
        assert!(screen.contains(part), "{part} is missing in:\n{screen}");
    }
}

#[test]
fn the_page_is_one_file_that_loads_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("out.html");
    let file = data("snapshots/medium_256_training.pickle.xz");
    run(&["replay-alloc", &file, "--html", &page.display().to_string()], "");
    let html = std::fs::read_to_string(&page).expect("the page");
    for outside in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!html.contains(outside), "{outside} in the page");
    }
    assert!(html.matches("<svg").count() == 2 && html.contains("495 segments"));
    assert_eq!(html.matches("<table").count(), html.matches("</table>").count());
}

#[test]
fn a_pickle_that_runs_code_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("evil.pickle");
    std::fs::write(&file, b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.").expect("written");
    let ran = run(&["replay-alloc", &file.display().to_string()], "");
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    for part in ["evil.pickle", "byte 17", "STACK_GLOBAL", "do not unpickle"] {
        assert!(ran.stderr.contains(part), "{part} is missing in: {}", ran.stderr);
    }
}

#[test]
fn a_file_cut_short_is_used_as_far_as_it_goes() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cut.pickle.xz");
    let whole = std::fs::read(data("snapshots/train_varlen.pickle.xz")).expect("the recording");
    std::fs::write(&file, &whole[..whole.len() / 2]).expect("written");
    let ran = run(&["replay-alloc", &file.display().to_string()], "");
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stdout.contains("PARTIAL  the file ends early"), "{}", ran.stdout);
}

#[test]
fn wrong_usage_is_told_apart_from_a_wrong_file() {
    let file = data("snapshots/small-p4.pickle");
    for args in [&["--on", "gpu:0"][..], &["--device", "9"], &["--scale", "0"], &["--no-such"]] {
        let ran = run(&[&["replay-alloc", &file], args].concat(), "");
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.stderr);
    }
    assert_eq!(run(&["replay-alloc", "/no/such/file"], "").code, 1);
}

/// A snapshot of `events` allocations in Python's own layout, written without holding it.
fn large(path: &Path, events: u64) -> std::io::Result<u64> {
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(b"\x80\x04}\x94(\x8c\x08segments\x94]\x94\x8c\x0ddevice_traces\x94]\x94]\x94")?;
    for i in 0..events {
        if i % 1000 == 0 {
            out.write_all(if i == 0 { b"(" } else { b"e(" })?;
        }
        let kind: &[u8] = if i % 2 == 0 { b"\x8c\x05alloc" } else { b"\x8c\x0efree_completed" };
        out.write_all(b"}\x94(\x8c\x06action")?;
        out.write_all(kind)?;
        out.write_all(b"\x8c\x04addr\x8a\x06")?;
        out.write_all(&(0x7f00_0000_0000u64 + i / 2 % 999 * 4096).to_le_bytes()[..6])?;
        out.write_all(b"\x8c\x04sizeM\x00\x08\x8c\x06streamK\x00\x8c\x07time_usJ")?;
        out.write_all(&(i as u32).to_le_bytes())?;
        out.write_all(b"\x8c\x0fcompile_context\x8c\x03N/A\x8c\x0duser_metadata\x8c\x00u")?;
    }
    out.write_all(b"eaau.")?;
    out.flush()?;
    Ok(path.metadata()?.len())
}

/// The most memory a run of the binary held, in bytes, with its output.
fn watched(args: &[&str]) -> (u64, String) {
    let mut child = Command::new(path()).args(args).stdout(Stdio::piped()).spawn().expect("glake starts");
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    while child.try_wait().expect("glake is waited for").is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let kib =
            text.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
        most = most.max(kib.unwrap_or(0u64) * 1024);
        std::thread::yield_now();
    }
    let out = child.wait_with_output().expect("its output");
    (most, String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The viewer in the browser dies above 1 GB; here a file of a hundred MB must not need a hundred MB.
#[test]
fn a_file_larger_than_the_memory_allowed_is_used_in_part_and_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("large.pickle");
    let size = large(&file, 1_000_000).expect("written");
    assert!(size > 100_000_000, "{size}");
    let (most, text) = watched(&["replay-alloc", &file.display().to_string(), "--memory", "24", "--json"]);
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(json["coverage"], "over-budget");
    let used = json["events_used"].as_u64().unwrap_or(0);
    assert!((100_000..1_000_000).contains(&used), "{used}");
    assert!(most < 120 << 20, "{most} bytes held for a file of {size}");
}
