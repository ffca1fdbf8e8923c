//! GPU health by NVML: the agent and the doctor over a stand-in library that refuses, lies, hangs and loses a GPU.

use glake_tests::agent::{Agent, Setup, can_watch, get, metric, wait};
use glake_tests::binary;
use glake_tests::nvml::{Scene, h100, machine, recorded};
use rustix::fs::inotify;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const GPU: &str = "UUID=\"GPU-5c1e0000-0000-4000-8000-00000000003b\",pci_bus_id=\"00000000:3B:00.0\"";

/// NVML's part of the state, once it is so.
fn told(agent: &Agent, health: &str) -> Value {
    wait(&format!("NVML is {health}"), || {
        let nvml = agent.json("/api/v1/state")["nvml"].clone();
        (nvml["health"] == health).then_some(nvml)
    })
}

/// The lines of `/metrics` that come from NVML's readings of GPUs.
fn series(agent: &Agent) -> Vec<String> {
    let families = ["ecc", "remapped", "row_remap", "retired", "memory", "utilization", "mig", "instance"];
    let is_one = |line: &&str| families.iter().any(|f| line.starts_with(&format!("glake_gpu_{f}")));
    agent.get("/metrics").lines().filter(is_one).map(str::to_owned).collect()
}

fn has(lines: &[String], name: &str, labels: &str, value: &str) -> bool {
    lines.iter().any(|line| *line == format!("{name}{{{labels}}} {value}"))
}

#[test]
fn a_gpu_s_health_arrives_in_the_state_and_in_the_metrics_as_dcgm_names_it() {
    if !can_watch() {
        return;
    }
    let scene = Scene::new(&machine(&[h100(0x3b)]));
    let agent = scene.agent(&[]).start();
    let nvml = told(&agent, "answering");
    let gpu = &nvml["gpus"][0];
    assert_eq!((&gpu["pci"], &nvml["driver"]), (&json!("0000:3b:00.0"), &json!("580.159.04")));
    assert_eq!(
        gpu["remapped_rows"],
        json!({"correctable": 11, "uncorrectable": 1, "pending": false, "failure": false})
    );
    assert_eq!(gpu["mig"], json!({"enabled": false, "enabled_after_reset": false, "instances": []}));
    assert!(nvml["age_ns"].as_u64().unwrap() < 5_000_000_000, "the reading has an age: {nvml}");
    let lines = series(&agent);
    for (name, more, value) in [
        ("glake_gpu_ecc_errors_total", ",severity=\"corrected\"", "3"),
        ("glake_gpu_ecc_errors_total", ",severity=\"uncorrected\"", "1"),
        ("glake_gpu_ecc_aggregate_errors_total", ",severity=\"corrected\"", "236795"),
        ("glake_gpu_remapped_rows_total", ",cause=\"correctable\"", "11"),
        ("glake_gpu_row_remap_failure", "", "0"),
        ("glake_gpu_mig_enabled", "", "0"),
        ("glake_gpu_memory_size_bytes", "", "85520809984"),
        ("glake_gpu_utilization_ratio", "", "0.87"),
    ] {
        assert!(has(&lines, name, &format!("{GPU}{more}"), value), "{name}{more} {value} in {lines:#?}");
    }
    // Ampere and newer replace rows and retire no page: that is not "none retired".
    assert!(!lines.iter().any(|l| l.starts_with("glake_gpu_retired")), "{lines:#?}");
    assert_eq!(
        gpu["retired_pages"],
        json!({"multiple_single_bit": null, "double_bit": null, "pending": null})
    );
    assert!(gpu["unknown"]["retired_pages"].as_str().unwrap().contains("does not have it"), "{gpu}");
    let coverage = agent.json("/api/v1/state")["coverage"].clone();
    let ecc = coverage.as_array().unwrap().iter().find(|c| c["family"] == "ecc").cloned().unwrap();
    assert_eq!(ecc["state"], "yes", "{ecc}");
}

/// A `/dev` with files where the driver's nodes would be; the program in `"$@"` sees it in place of the real one.
const DEV: &str =
    "mount --rbind /dev \"$OLD\" && mount --bind \"$NEW\" /dev && ln -s \"$OLD\"/* /dev/ && exec \"$@\"";

/// How often each of the driver's nodes was opened while an agent with these variables ran for a while.
fn opened(variables: Vec<(String, String)>) -> Vec<(&'static str, usize)> {
    let nodes = ["nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-uvm-tools"];
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let watcher = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let watches = nodes.map(|node| {
        let path = new.path().join(node);
        std::fs::write(&path, "").unwrap();
        inotify::add_watch(&watcher, &path, inotify::WatchFlags::OPEN).unwrap()
    });
    let mut setup = Setup::new(&["--once", "--json", "--interval", "1s"]);
    setup.env = variables;
    let place = |path: &std::path::Path| path.display().to_string();
    setup.env.extend([("OLD".to_owned(), place(old.path())), ("NEW".to_owned(), place(new.path()))]);
    setup.before = ["unshare", "--mount", "sh", "-c", DEV, "sh"].map(str::to_owned).into();
    let folder = tempfile::tempdir().unwrap();
    let ran = setup.command(folder.path()).output().unwrap();
    let state: Value = serde_json::from_slice(&ran.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&ran.stderr)));
    assert!(state["probes"].is_array(), "it ran: {state}");
    let mut room = [const { std::mem::MaybeUninit::uninit() }; 4096];
    let mut events = inotify::Reader::new(&watcher, &mut room);
    let mut seen = Vec::new();
    while let Ok(event) = events.next() {
        seen.push(event.wd());
    }
    std::iter::zip(nodes, watches)
        .map(|(node, watch)| (node, seen.iter().filter(|w| **w == watch).count()))
        .collect()
}

#[test]
fn by_default_no_device_node_of_the_driver_is_opened_and_with_nvml_they_are() {
    if !can_watch() {
        return;
    }
    let scene = Scene::new(&machine(&[h100(0x3b)]));
    let enabled = opened(scene.variables());
    assert!(enabled[0].1 > 0, "the library opens nvidiactl, or this test could not fail: {enabled:?}");
    let mut variables = scene.variables();
    variables.retain(|(name, _)| name != "GLAKE_NVML_ENABLED");
    let before = scene.calls().len();
    let default = opened(variables);
    assert_eq!(default, default.iter().map(|(node, _)| (*node, 0)).collect::<Vec<_>>());
    assert_eq!(scene.calls().len(), before, "and the library is not asked");
}

#[test]
fn what_a_consumer_gpu_does_not_have_is_unknown_and_has_no_series() {
    if !can_watch() {
        return;
    }
    let xml = std::fs::read_to_string(binary::data("nvidia-smi/rtx-3090-v12.nvidia-smi-q-x.xml")).unwrap();
    let scene = Scene::new(&recorded(&xml));
    let agent = scene.agent(&[]).start();
    let gpu = told(&agent, "answering")["gpus"][0].clone();
    let nothing = json!({"corrected": null, "uncorrected": null});
    assert_eq!((&gpu["ecc_volatile"], &gpu["ecc_aggregate"]), (&nothing, &nothing));
    assert_eq!((&gpu["remapped_rows"], &gpu["mig"]), (&Value::Null, &Value::Null));
    let lines = series(&agent);
    let absent = ["ecc", "remapped", "row_remap", "retired", "mig", "instance"];
    let wrong = lines.iter().find(|l| absent.iter().any(|f| l.starts_with(&format!("glake_gpu_{f}"))));
    assert_eq!(wrong, None, "a series at 0 would say that it was measured");
    assert!(
        lines.iter().any(|l| l.starts_with("glake_gpu_memory_used_bytes{")),
        "what it has is there: {lines:?}"
    );
}

#[test]
fn a_gpu_that_retires_pages_and_has_none_retired_says_zero() {
    if !can_watch() {
        return;
    }
    let xml = std::fs::read_to_string(binary::data("nvidia-smi/tesla-t4.nvidia-smi-q-x.xml")).unwrap();
    let scene = Scene::new(&recorded(&xml));
    let agent = scene.agent(&[]).start();
    let gpu = told(&agent, "answering")["gpus"][0].clone();
    assert_eq!(gpu["retired_pages"], json!({"multiple_single_bit": 0, "double_bit": 0, "pending": false}));
    assert_eq!(gpu["remapped_rows"], Value::Null);
    let retired: Vec<String> =
        series(&agent).into_iter().filter(|l| l.starts_with("glake_gpu_retired_pages_total{")).collect();
    assert_eq!(retired.len(), 2, "{retired:?}");
    assert!(retired.iter().all(|l| l.ends_with(" 0")), "{retired:?}");
}

/// Cases J15, J07 and J11: the recorded A100 with four instances.
#[test]
fn under_mig_instances_are_apart_from_their_gpu_and_utilisation_is_absent() {
    if !can_watch() {
        return;
    }
    let xml = std::fs::read_to_string(binary::data("nvidia-smi/a100-sxm4-v12.nvidia-smi-q-x.xml")).unwrap();
    let mut scene = recorded(&xml);
    // Some releases answer 0 under MIG in place of a refusal.
    scene["gpus"][0]["busy"] = json!(0);
    let scene = Scene::new(&scene);
    let agent = scene.agent(&[]).start();
    let gpu = told(&agent, "answering")["gpus"][0].clone();
    let mib = |n: u64| json!(n << 20);
    let own = &gpu["memory"];
    assert_eq!((&own["total_bytes"], &own["reserved_bytes"]), (&mib(81_920), &mib(869)));
    assert_eq!((&own["used_bytes"], &own["free_bytes"]), (&mib(50), &mib(80_999)));
    assert_eq!(gpu["bar1"]["total_bytes"], mib(131_072));
    let instances = gpu["mig"]["instances"].as_array().unwrap();
    let ids: Vec<u64> = instances.iter().map(|i| i["gpu_instance"].as_u64().unwrap()).collect();
    assert_eq!(ids, [3, 4, 5, 6]);
    for instance in instances {
        let memory = &instance["memory"];
        assert_eq!(memory["total_bytes"], mib(19_968));
        assert_eq!((&memory["used_bytes"], &memory["free_bytes"]), (&mib(12), &mib(19_955)));
        assert_eq!(instance["bar1"]["total_bytes"], mib(32_767));
    }
    assert_eq!((&gpu["remapped_rows"], &gpu["retired_pages"]["double_bit"]), (&Value::Null, &Value::Null));
    assert_eq!(gpu["busy_percent"], Value::Null, "0 would be a lie (J07)");
    assert!(gpu["unknown"]["busy_percent"].as_str().unwrap().contains("DCGM_FI_PROF_GR_ENGINE_ACTIVE"));

    let body = agent.get("/metrics");
    let sum = |name: &str| metric(&body, &[&format!("{name}{{")]);
    assert_eq!(
        sum("glake_gpu_memory_size_bytes"),
        f64::from(81_920 << 10) * 1024.0,
        "a sum over GPUs is right"
    );
    assert_eq!(sum("glake_gpu_instance_memory_size_bytes"), f64::from(79_872 << 10) * 1024.0);
    assert_eq!(sum("glake_gpu_instance_memory_used_bytes"), f64::from(48 << 20));
    for absent in
        ["glake_gpu_utilization_ratio{", "glake_gpu_remapped_rows_total{", "glake_gpu_retired_pages_total{"]
    {
        assert!(!body.contains(absent), "{absent}");
    }
    assert!(body.contains("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), "the help says where to look");
    // J11: what a kubelet calls the device leads to the GPU and the instance that DCGM's labels name.
    let of = |part: &str| {
        body.lines().filter(|l| l.starts_with("glake_gpu_instance_info{") && l.contains(part)).count()
    };
    assert_eq!(of("instance_uuid=\"MIG-00000000-0000-0000-0000-000000000005\""), 1);
    let line = body
        .lines()
        .find(|l| l.contains("instance_uuid=\"MIG-00000000-0000-0000-0000-000000000005\""))
        .unwrap();
    let labels = "UUID=\"GPU-00000000-0000-0000-0000-000000000000\",pci_bus_id=\"00000000:01:00.0\",GPU_I_ID=\"5\",GPU_I_PROFILE=\"2g.20gb\"";
    assert!(line.contains(labels), "{line}");
}

/// Cases J09 and J01: a call that does not come back. And E05, last clause: the agent ends in time all the same.
#[test]
fn a_library_that_hangs_stalls_nobody_and_its_old_values_are_gone() {
    if !can_watch() {
        return;
    }
    let whole = machine(&[h100(0x3b)]);
    let scene = Scene::new(&whole);
    let mut agent = scene.agent(&[]).start();
    told(&agent, "answering");
    assert!(metric(&agent.get("/metrics"), &["glake_nvml_up "]) == 1.0);
    let mut hung = whole.clone();
    hung["hang"] = json!(["nvmlDeviceGetRemappedRows"]);
    scene.set(&hung);
    let silent = told(&agent, "silent");
    assert_eq!(silent["gpus"], json!([]), "an old value is no value");
    assert!(silent["unknown_since"]["realtime_ns"].as_u64().unwrap() > 0, "{silent}");
    assert!(silent["reason"].as_str().unwrap().contains("has not answered for"), "{silent}");
    let begun = Instant::now();
    let body = agent.get("/metrics");
    assert!(begun.elapsed() < Duration::from_secs(1), "a scrape waits for nobody");
    assert_eq!(metric(&body, &["glake_nvml_up "]), 0.0);
    assert!(metric(&body, &["glake_nvml_failed_reads_total "]) >= 1.0, "{body}");
    assert_eq!(series(&agent), Vec::<String>::new());
    let (status, health) = get(agent.address, "/healthz", "");
    assert!(
        status == 200 && health.contains("degraded") && health.contains("NVML has not answered"),
        "{health}"
    );
    // Nobody asks a second time while the first question hangs, and readings of everything else go on.
    let asked = scene.calls().len();
    let state = |agent: &Agent| agent.json("/api/v1/state")["at"]["monotonic_ns"].as_u64().unwrap();
    let before = state(&agent);
    wait("more readings", || (state(&agent) > before + 3_000_000_000).then_some(()));
    assert_eq!(scene.calls().len(), asked);
    // It comes back: so do the values, without a restart.
    scene.set(&whole);
    told(&agent, "answering");
    assert!(!series(&agent).is_empty());
    scene.set(&hung);
    told(&agent, "silent");
    agent.signal(Signal::TERM);
    let begun = Instant::now();
    assert_eq!(agent.ended().code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

/// Case J13.
#[test]
fn after_the_driver_was_reloaded_the_series_return_and_no_failure_is_counted_any_more() {
    if !can_watch() {
        return;
    }
    let whole = machine(&[h100(0x3b)]);
    let scene = Scene::new(&whole);
    let agent = scene.agent(&[]).start();
    told(&agent, "answering");
    let mut unloaded = whole.clone();
    unloaded["refuse"] = json!({"*": 9});
    scene.set(&unloaded);
    let failed = told(&agent, "failed");
    assert!(failed["reason"].as_str().unwrap().contains("driver is not loaded"), "{failed}");
    assert_eq!((&failed["gpus"], series(&agent).len()), (&json!([]), 0));
    let failures = |agent: &Agent| metric(&agent.get("/metrics"), &["glake_nvml_failed_reads_total "]);
    wait("a second try", || (failures(&agent) >= 2.0).then_some(()));
    scene.set(&whole);
    told(&agent, "answering");
    let (count, calls) = (failures(&agent), scene.calls().len());
    wait("another reading", || (scene.calls().len() > calls + 10).then_some(()));
    assert_eq!(failures(&agent), count);
    assert!(has(&series(&agent), "glake_gpu_row_remap_pending", GPU, "0"));
    let inits = scene.calls().iter().filter(|c| *c == "nvmlInit_v2").count();
    assert!(inits >= 3, "it was initialised anew: {inits}");
}

#[test]
fn a_lost_gpu_keeps_its_name_loses_its_values_and_takes_no_other_with_it() {
    if !can_watch() {
        return;
    }
    let mut whole = machine(&[h100(0x19), h100(0x3b)]);
    let scene = Scene::new(&whole);
    let agent = scene.agent(&[]).start();
    told(&agent, "answering");
    whole["gpus"][0]["lost"] = json!(true);
    scene.set(&whole);
    let gpus = wait("it is missed", || {
        let gpus = agent.json("/api/v1/state")["nvml"]["gpus"].clone();
        (gpus[0]["lost"] == true).then_some(gpus)
    });
    assert_eq!(gpus[0]["pci"], "0000:19:00.0", "who it was is known from before");
    assert!(gpus[0]["unknown"]["all"].as_str().unwrap().contains("fell off the bus"), "{gpus}");
    assert_eq!(gpus[0]["memory"], Value::Null);
    let lines = series(&agent);
    assert!(
        has(&lines, "glake_gpu_ecc_errors_total", &format!("{GPU},severity=\"corrected\""), "3"),
        "{lines:?}"
    );
    assert!(!lines.iter().any(|l| l.contains("00000000:19:00.0")), "{lines:?}");
}

#[test]
fn what_the_library_makes_up_is_not_believed() {
    if !can_watch() {
        return;
    }
    let mut odd = h100(0x3b);
    odd["rows"] = json!([4_294_967_295u32, 0, 7, 9]);
    odd["uuid"] = json!("GPU-\u{1b}[2J\"\n");
    let mut scene_now = machine(&[odd]);
    let scene = Scene::new(&scene_now);
    let agent = scene.agent(&[]).start();
    let rows = told(&agent, "answering")["gpus"][0]["remapped_rows"].clone();
    assert_eq!(
        rows,
        json!({"correctable": 4_294_967_295u32, "uncorrectable": 0, "pending": true, "failure": true})
    );
    let body = agent.get("/metrics");
    assert!(
        body.lines().all(|l| l.starts_with('#') || l.rsplit(' ').next().unwrap().parse::<f64>().is_ok()),
        "{body}"
    );
    assert!(!body.contains('\u{1b}'), "no escape reaches a terminal");
    scene_now["count"] = json!(4_000_000_000u32);
    scene.set(&scene_now);
    let failed = told(&agent, "failed");
    assert!(failed["reason"].as_str().unwrap().contains("lists 4000000000 GPUs"), "{failed}");
}

/// The doctor's line about NVML, with these variables.
fn doctor(variables: &[(String, String)]) -> Value {
    let mut command = std::process::Command::new(binary::path());
    command.args(["doctor", "--json"]).envs(variables.iter().cloned());
    let out = command.output().unwrap();
    let report: Value = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out.stderr)));
    let rows = report["coverage"].as_array().unwrap().clone();
    rows.into_iter().find(|row| row["family"] == "ecc").expect("a line about NVML")
}

#[test]
fn the_doctor_says_why_nvml_is_not_asked_or_does_not_answer() {
    let row = doctor(&[]);
    assert_eq!(row["state"], "off");
    let why = row["why"][0].as_str().unwrap();
    assert!(why.contains("not enabled (default)") && why.contains("nvml.enabled = true"), "{why}");

    let mut scene_now = machine(&[h100(0x19), h100(0x3b)]);
    let scene = Scene::new(&scene_now);
    let row = doctor(&scene.variables());
    assert_eq!(row["state"], "yes", "{row}");
    assert_eq!(row["why"], json!([]), "that it retires no pages is no news of a GPU that replaces rows");
    assert!(row["how"][0].as_str().unwrap().contains("driver 580.159.04), 2 GPUs"), "{row}");

    for (code, reason, remedy) in [
        (4, "device nodes may not be opened", "/dev/nvidiactl"),
        (9, "driver is not loaded", "modprobe nvidia"),
        (18, "different releases", "restart the machine"),
        (999, "internal driver error", "nvidia-smi"),
    ] {
        scene_now["refuse"] = json!({"nvmlInit_v2": code});
        scene.set(&scene_now);
        let row = doctor(&scene.variables());
        let why = row["why"][0].as_str().unwrap_or_default().to_owned();
        assert!(row["state"] == "no" && why.contains(reason) && why.contains(remedy), "{code}: {row}");
    }
    scene_now["refuse"] = json!({});
    scene_now["gpus"][0]["lost"] = json!(true);
    scene.set(&scene_now);
    let row = doctor(&scene.variables());
    assert_eq!(row["state"], "partly", "{row}");
    assert!(row["why"].to_string().contains("fell off the bus"), "{row}");

    scene_now["hang"] = json!(["nvmlInit_v2"]);
    scene.set(&scene_now);
    let row = doctor(&scene.variables());
    assert!(row["state"] == "no" && row["why"].to_string().contains("has not answered for"), "{row}");

    let mut variables = scene.variables();
    variables.retain(|(name, _)| name != "GLAKE_NVML_LIBRARY");
    variables.push(("GLAKE_NVML_LIBRARY".into(), "/nonexistent/libnvidia-ml.so.1".into()));
    let row = doctor(&variables);
    let why = row["why"][0].as_str().unwrap().to_owned();
    assert!(
        why.contains("/nonexistent/libnvidia-ml.so.1 cannot be loaded") && why.contains("libnvidia-ml1"),
        "{why}"
    );
}

/// `glake who` where the driver lists one GPU under /proc, with these arguments and variables.
fn who(args: &[&str], variables: &[(String, String)]) -> (String, String) {
    const PROC: &str =
        "mount -t tmpfs none /proc/driver && cp -r \"$GPUS\" /proc/driver/nvidia && exec \"$@\"";
    let driver = tempfile::tempdir().unwrap();
    let gpu = driver.path().join("nvidia/gpus/0000:3b:00.0");
    std::fs::create_dir_all(&gpu).unwrap();
    let information = "Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t GPU-5c1e0000-0000-4000-8000-00000000003b\nDevice Minor: \t 0\n";
    std::fs::write(gpu.join("information"), information).unwrap();
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", PROC, "sh"]).arg(binary::path()).arg("who").args(args);
    command.env("GPUS", driver.path().join("nvidia")).envs(variables.iter().cloned());
    let out = command.output().unwrap();
    (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
}

#[test]
fn who_tells_memory_without_a_process_only_when_nvml_may_be_asked() {
    if !can_watch() {
        return;
    }
    let mut gpu = h100(0x3b);
    gpu["processes"] = json!([[88_213, 1u64 << 30]]);
    let mut whole = machine(&[gpu]);
    let scene = Scene::new(&whole);
    let variables = scene.variables();
    let (text, said) = who(&["gpu:0"], &variables);
    assert!(text.contains("cannot tell without --nvml"), "{text}{said}");
    assert_eq!(scene.calls(), Vec::<String>::new(), "not even where the agent may");
    let (text, said) = who(&["gpu:0", "--nvml"], &variables);
    assert!(
        text.contains("4.68 GiB used of 79.6 GiB: pid 88213 1.00 GiB; 3.68 GiB with NO PROCESS"),
        "{text}{said}"
    );
    let (json, said) = who(&["gpu:0", "--nvml", "--json"], &variables);
    let json: Value = serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {json}{said}"));
    assert_eq!(json["gpus"][0]["memory_without_process_bytes"], 5_020_809_984u64 - (1 << 30));
    whole["hang"] = json!(["nvmlDeviceGetMemoryInfo_v2"]);
    scene.set(&whole);
    let begun = Instant::now();
    let (text, _) = who(&["gpu:0", "--nvml"], &variables);
    assert!(text.contains("cannot tell: NVML has not answered for 1 s"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(10), "and what else is known was told");
}
