use super::{accept::Format, tests::Book, text::render, tree::Itself, tree::tree};
use crate::{
    clock::Stamp,
    events::{nvml::*, sample::Sample},
    host::inventory::{Gpu, Inventory},
};

const GPU: &str = r#"UUID="GPU-5c1e",pci_bus_id="00000000:3B:00.0""#;

fn memory(bytes: u64) -> Option<Memory> {
    Some(Memory { total_bytes: bytes, reserved_bytes: None, free_bytes: bytes / 2, used_bytes: bytes / 2 })
}

/// A GPU that tells everything at once, as no real one does.
pub(super) fn health() -> Nvml {
    let errors = Errors { corrected: Some(236_795), uncorrected: Some(2) };
    let instance = Instance {
        uuid: Some("MIG-7".into()),
        gpu_instance: Some(3),
        compute_instance: Some(0),
        profile: Some("2g.20gb".into()),
        memory: memory(20),
        bar1: memory(8),
    };
    let gpu = GpuHealth {
        pci: Some("0000:3b:00.0".into()),
        uuid: Some("GPU-5c1e".into()),
        ecc_volatile: errors,
        ecc_aggregate: errors,
        remapped_rows: Some(RemappedRows {
            correctable: 11,
            uncorrectable: 1,
            pending: true,
            failure: false,
        }),
        retired_pages: RetiredPages {
            multiple_single_bit: Some(4),
            double_bit: Some(1),
            pending: Some(false),
        },
        mig: Some(Mig { enabled: true, enabled_after_reset: true, instances: vec![instance] }),
        memory: memory(80),
        busy_percent: Some(87),
        ..GpuHealth::default()
    };
    let read_at = Some(Stamp { monotonic_ns: 5, realtime_ns: 5_000_000_000 });
    Nvml { health: Health::Answering, read_at, gpus: vec![gpu], failed_reads: 3, ..Nvml::default() }
}

fn body(readings: &[Option<Nvml>]) -> String {
    let gpu = Gpu { pci: "0000:3b:00.0".into(), uuid: Some("GPU-5c1e".into()), ..Gpu::default() };
    let host = Inventory { gpus: vec![gpu], ..Inventory::default() };
    let mut book = Book::default();
    for (ns, nvml) in (1..).zip(readings) {
        let at = Stamp { monotonic_ns: ns, realtime_ns: ns };
        book.advance(&Sample { at, nvml: nvml.clone(), ..Sample::default() }, &host);
    }
    render(&tree(&book, &Itself::default()), Format::Classic)
}

fn has(body: &str, line: &str) -> bool {
    body.lines().any(|l| l == line)
}

#[test]
fn what_nvml_counts_is_told_whole_and_not_as_growth() {
    let told = Some(health());
    let text = body(&[told.clone(), told]);
    for line in [
        format!("glake_gpu_ecc_aggregate_errors_total{{{GPU},severity=\"corrected\"}} 236795"),
        format!("glake_gpu_remapped_rows_total{{{GPU},cause=\"correctable\"}} 11"),
        format!("glake_gpu_row_remap_pending{{{GPU}}} 1"),
        format!("glake_gpu_instance_memory_used_bytes{{{GPU},GPU_I_ID=\"3\"}} 10"),
        "glake_nvml_failed_reads_total 3".to_owned(),
        "glake_nvml_last_read_timestamp_seconds 5".to_owned(),
    ] {
        assert!(has(&text, &line), "{line} in\n{text}");
    }
}

#[test]
fn a_gpu_without_a_place_on_the_bus_has_no_series() {
    let mut nameless = health();
    nameless.gpus[0].pci = None;
    assert!(!body(&[Some(nameless)]).contains("glake_gpu_ecc_errors_total{"));
}

/// Case J01: what was known before the library stopped answering is not served on.
#[test]
fn when_nvml_stops_answering_its_series_vanish_with_the_next_reading() {
    let silent = Nvml { health: Health::Silent, gpus: Vec::new(), ..health() };
    let text = body(&[Some(health()), Some(silent)]);
    assert!(has(&text, "glake_nvml_up 0"), "{text}");
    assert!(has(&text, "glake_nvml_last_read_timestamp_seconds 5"), "its age can be told");
    for family in ["ecc_errors_total", "memory_used_bytes", "instance_info", "utilization_ratio"] {
        assert!(!text.contains(&format!("glake_gpu_{family}{{")), "{family}");
    }
    assert!(has(&text, &format!("glake_gpu_up{{{GPU}}} 1")), "what /proc says goes on");
}

#[test]
fn a_gpu_that_nvml_calls_lost_is_down_and_one_that_it_does_not_know_is_not() {
    let mut lost = health();
    lost.gpus[0].lost = true;
    assert!(has(&body(&[Some(lost.clone())]), &format!("glake_gpu_up{{{GPU}}} 0")));
    lost.gpus[0].pci = Some("0000:99:00.0".into());
    assert!(has(&body(&[Some(lost)]), &format!("glake_gpu_up{{{GPU}}} 1")));
}

/// Case J03.
#[test]
fn facts_keep_their_labels_when_only_readings_change() {
    let mut later = health();
    later.gpus[0].busy_percent = Some(3);
    later.gpus[0].memory = memory(70);
    later.gpus[0].ecc_volatile.corrected = Some(236_999);
    let series = |nvml| -> Vec<String> {
        let text = body(&[Some(nvml)]);
        text.lines().filter_map(|l| l.rsplit_once(' ')).map(|(series, _)| series.to_owned()).collect()
    };
    let named = |nvml| -> Vec<String> { series(nvml).into_iter().filter(|s| !s.starts_with('#')).collect() };
    let (before, after) = (named(health()), named(later));
    assert!(before.iter().any(|s| s.starts_with("glake_gpu_info{")));
    assert_eq!(before, after, "a reading is a value, never a label");
}

#[test]
fn where_nvml_is_not_asked_there_is_no_word_of_it() {
    assert!(!body(&[None]).lines().any(|l| l.starts_with("glake_nvml_")));
}

/// Case J11: the device id of a pod's MIG instance leads to the GPU it is part of.
#[test]
fn a_mig_uuid_names_its_gpu_and_its_instance() {
    let nvml = health();
    let (gpu, instance) = nvml.find("MIG-7").expect("it is there");
    assert_eq!((gpu.uuid.as_deref(), instance.and_then(|i| i.gpu_instance)), (Some("GPU-5c1e"), Some(3)));
    assert!(nvml.find("GPU-5c1e").is_some_and(|(_, instance)| instance.is_none()));
    assert!(nvml.find("MIG-8").is_none());
}
