//! `glake copy`, `load` and `bench copy` with the host GPU: what they print, keep and refuse.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use glake::copy::safetensors::{Dtype, Tensor, write};
use glake_tests::agent::{Setup, can_watch, metric, wait};
use glake_tests::binary::{self, Ran};
use glake_tests::copying::on_disk;
use serde_json::Value;

/// Runs the binary with the host GPU and a cache folder of its own.
fn glake(home: &Path, args: &[&str]) -> Ran {
    let mut command = Command::new(binary::path());
    command.args(args).env("GLAKE_DEVICE", "host").env("XDG_CACHE_HOME", home.join("cache"));
    ran(&mut command)
}

fn ran(command: &mut Command) -> Ran {
    let out = command.output().unwrap();
    Ran {
        code: out.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

fn json(ran: &Ran) -> Value {
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

fn file(folder: &Path, name: &str, size: usize) -> String {
    let path = folder.join(name);
    std::fs::write(&path, (0..size).map(|i| (i * 31 % 251) as u8).collect::<Vec<_>>()).unwrap();
    path.display().to_string()
}

/// A safetensors file of byte tensors.
fn weights(folder: &Path, name: &str, tensors: &[(&str, u64)]) -> String {
    let dtype = Dtype::named("U8").unwrap();
    let tensors: Vec<Tensor> = tensors
        .iter()
        .map(|(name, size)| Tensor {
            name: (*name).into(),
            dtype,
            shape: vec![*size],
            offset: 0,
            size: *size,
        })
        .collect();
    let (mut bytes, size) = write(&tensors, &BTreeMap::new()).unwrap();
    bytes.resize(size as usize, 3);
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

#[test]
fn a_copy_is_verified_byte_for_byte_on_every_route() {
    let dir = on_disk();
    let path = file(dir.path(), "f", 5_000_001);
    for route in ["auto", "page_cache", "disk", "plain"] {
        let copied =
            json(&glake(dir.path(), &["copy", &path, "gpu:0", "--verify", "--json", "--route", route]));
        assert_eq!(
            (&copied["bytes"], &copied["verified_bytes"]),
            (&5_000_001.into(), &5_000_001.into()),
            "{route}"
        );
        assert!(copied["bytes_per_second"].as_f64().unwrap() > 0.0);
        if route != "auto" {
            assert_eq!(copied["route"], route);
        }
    }
    let said = glake(dir.path(), &["copy", &path, "gpu:0", "--verify"]);
    assert!(
        said.stdout.contains("every byte verified") && said.stdout.lines().count() == 1,
        "{}",
        said.stdout
    );
}

#[test]
fn the_explanation_names_every_route_and_claims_no_rate_that_was_not_measured() {
    let dir = on_disk();
    let path = file(dir.path(), "f", 4_000_000);
    let before = json(&glake(dir.path(), &["copy", "--explain", "--json", &path, "gpu:0"]));
    assert_eq!(before["decision"]["expected_seconds"], Value::Null);
    let rows = before["decision"]["rows"].as_array().unwrap();
    assert!(rows.iter().all(|r| r["bytes_per_second"].is_null()), "{rows:?}");
    assert_eq!(rows.iter().filter(|r| r["state"] == "chosen").count(), 1);

    let bench = glake(dir.path(), &["bench", "copy", &path, "--runs", "1"]);
    assert_eq!(bench.code, 0, "{}", bench.stderr);
    assert!(bench.stdout.contains("best page cache staging"), "{}", bench.stdout);
    let after = json(&glake(dir.path(), &["copy", "--explain", "--json", &path, "gpu:0"]));
    assert!(after["decision"]["expected_seconds"].as_f64().unwrap() > 0.0);
    let text = glake(dir.path(), &["copy", "--explain", &path, "gpu:0"]).stdout;
    for words in ["CHOSEN", "plain copy", "NOT IN THIS VERSION", "cuFile"] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn damaged_rates_are_said_and_not_used() {
    let dir = on_disk();
    let path = file(dir.path(), "f", 100_000);
    std::fs::create_dir_all(dir.path().join("cache/glake")).unwrap();
    std::fs::write(dir.path().join("cache/glake/routes.json"), "{\"version\":1,").unwrap();
    let ran = glake(dir.path(), &["copy", &path, "gpu:0"]);
    assert_eq!(ran.code, 0);
    assert!(ran.stderr.contains("routes.json") && ran.stderr.contains("damaged"), "{}", ran.stderr);
}

#[test]
fn a_checkpoint_of_many_files_loads_as_one_and_the_bench_compares_with_a_plain_copy() {
    let dir = on_disk();
    weights(dir.path(), "a.safetensors", &[("x", 3_000_000), ("norm", 7)]);
    weights(dir.path(), "b.safetensors", &[("y", 2_000_003)]);
    let path = dir.path().display().to_string();
    let loaded = json(&glake(dir.path(), &["load", &path, "--bench", "--runs", "2", "--json"]));
    assert_eq!(
        (&loaded["files"], &loaded["tensors"], &loaded["bytes"]),
        (&2.into(), &3.into(), &5_000_010.into())
    );
    for runs in ["runs", "plain_runs"] {
        let runs = loaded[runs].as_array().unwrap();
        assert!(runs.len() == 2 && runs.iter().all(|r| r["bytes"] == 5_000_010), "{runs:?}");
    }
    let text = glake(dir.path(), &["load", &path, "--bench", "--runs", "1"]).stdout;
    assert!(text.contains("3 tensors in 2 files") && text.contains("ratio"), "{text}");
}

#[test]
fn weights_that_are_none_are_refused_with_what_to_do() {
    let dir = on_disk();
    let odd =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("data/safetensors-odd/08-truncated-data.safetensors");
    let pointer = dir.path().join("lfs.safetensors");
    std::fs::write(&pointer, "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n").unwrap();
    for (path, words) in [
        (odd, "bytes are missing -> the download or the copy was cut short"),
        (pointer, "Git LFS pointer, not the weights -> git lfs pull"),
        (dir.path().join("none.safetensors"), "none.safetensors"),
    ] {
        let ran = glake(dir.path(), &["load", &path.display().to_string()]);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{}", ran.stderr);
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
}

#[test]
fn without_a_gpu_the_copy_says_so_and_wrong_targets_are_wrong_usage() {
    let dir = on_disk();
    let path = file(dir.path(), "f", 1000);
    let mut real = Command::new(binary::path());
    let ran_real = ran(real.args(["copy", &path, "gpu:0"]).env("GLAKE_DEVICE", "cuda"));
    if ran_real.code != 0 {
        assert!(ran_real.stderr.contains("CUDA driver"), "{}", ran_real.stderr);
    }
    for args in [
        &["copy", &path, "host"][..],
        &["copy", &path, "gpu:0", "--lanes", "3"],
        &["copy", &path, "gpu:0", "--route", "gds"],
    ] {
        assert_eq!(glake(dir.path(), args).code, 2, "{args:?}");
    }
    let empty = file(dir.path(), "empty", 0);
    let ran = glake(dir.path(), &["copy", &empty, "gpu:0"]);
    assert!(ran.code == 1 && ran.stderr.contains("is empty"), "{}", ran.stderr);
}

#[test]
fn the_agent_counts_the_copies_of_programs_that_end_before_it_looks() {
    if !can_watch() {
        return;
    }
    let home = on_disk();
    let source = file(home.path(), "model.bin", 3_000_000);
    let agent = Setup::new(&["--interval", "1s"]).start();
    let to_gpu = ["glake_copy_bytes_total", "direction=\"to_gpu\"", "route=\"page_cache\""];
    // The first look has to be over: what was copied before is not the agent's to count.
    wait("the agent's first reading", || agent.json("/api/v1/state")["allocators"].is_array().then_some(()));
    for _ in 0..2 {
        let ran = glake(home.path(), &["copy", &source, "gpu:0", "--route", "page_cache"]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
    }
    wait("the copies to be counted", || (metric(&agent.get("/metrics"), &to_gpu) >= 6e6).then_some(()));
    assert!(metric(&agent.get("/metrics"), &["glake_copy_duration_seconds_count", "page_cache"]) >= 2.0);
}

#[test]
fn another_gpu_relays_where_it_is_named_and_the_bytes_are_the_same() {
    let home = on_disk();
    let source = file(home.path(), "model.bin", 30_000_000);
    let base = ["copy", source.as_str(), "gpu:0", "--lanes", "2", "--part", "64KiB"];
    let with = |more: &[&str]| glake(home.path(), &[&base[..], more].concat());
    let copied = json(&with(&["--relay", "gpu:1", "--verify", "--json"]));
    assert_eq!((&copied["bytes"], &copied["verified_bytes"]), (&30_000_000.into(), &30_000_000.into()));
    assert!(copied["relayed_bytes"].as_u64() > Some(0), "{copied}");
    let explained = with(&["--relay", "gpu:1", "--explain"]);
    assert!(explained.stdout.contains("over 1 other GPU too"), "{}", explained.stdout);
    let alone = json(&with(&["--json"]));
    assert_eq!(alone["relayed_bytes"], 0);
    let itself = with(&["--relay", "gpu:0"]);
    assert!(itself.code != 0 && itself.stderr.contains("is the GPU that is copied to"), "{}", itself.stderr);
    let nobody = with(&["--relay", "gpu:64"]);
    assert!(nobody.code != 0 && nobody.stderr.contains("host GPU 64"), "{}", nobody.stderr);
}
