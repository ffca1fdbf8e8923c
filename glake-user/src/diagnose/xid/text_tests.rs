use super::*;
use crate::clock::Stamp;
use crate::diagnose::xid::record::Seen;
use crate::events::xid::parse::MmuFault;

#[test]
fn times_are_utc_with_milliseconds() {
    assert_eq!(time(0), "1970-01-01T00:00:00.000Z");
    assert_eq!(time(1_737_434_504_283_302_000), "2025-01-21T04:41:44.283Z");
    assert_eq!(time(951_782_400_000_000_000), "2000-02-29T00:00:00.000Z");
    assert_eq!(time(1_798_761_599_999_999_999), "2026-12-31T23:59:59.999Z");
}

#[test]
fn the_record_reads_action_first_and_names_its_sources() {
    let r = Record {
        host: "gpu-node-17".into(),
        at: Stamp { monotonic_ns: 10_000_000_000, realtime_ns: 1_796_004_697_204_000_000 },
        last: Stamp { monotonic_ns: 10_005_000_000, realtime_ns: 1_796_004_697_209_000_000 },
        pci_bus_id: Some("00000000:3B:00.0".into()),
        uuid: Some("GPU-5c1e".into()),
        gpu: Some(1),
        code: 31,
        code_told: true,
        meaning: "GPU MMU page fault".into(),
        do_now: "restart the application".into(),
        who: Some(Who {
            pid: Some(88213),
            name: Some("VLLM::EngineCore".into()),
            workload: Some("serve/chat-5d9".into()),
            source: "driver message + /proc".into(),
            lag_ns: 800_000,
            ..Who::default()
        }),
        message_source: "kernel log".into(),
        mmu: Some(MmuFault {
            address: Some(0x7f3a_1c20_0000),
            engine: Some("GRAPHICS GPC3".into()),
            fault: Some("FAULT_PDE".into()),
            access: Some("read".into()),
        }),
        codes: [(31, Seen { exact: 1, log: 1 }), (45, Seen { exact: 2, log: 2 })].into(),
        ..Record::default()
    };
    let text = show(&r);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0]
            .ends_with("gpu-node-17  gpu 1  UUID GPU-5c1e  00000000:3B:00.0   Xid 31: GPU MMU page fault")
    );
    assert_eq!(lines[1], "DO NOW     restart the application");
    assert_eq!(
        lines[2],
        "WHO        serve/chat-5d9, pid 88213 (host), comm VLLM::EngineCore    from: driver message + /proc, 800 us later"
    );
    assert_eq!(
        lines[3],
        "WHAT       READ at 0x7f3a1c200000, FAULT_PDE, engine GRAPHICS GPC3    from: kernel log"
    );
    assert!(
        text.contains(
            "Xid 31 x1; folded in, they only follow or belong to it: Xid 45 x2; all within 5.00 ms"
        )
    );
    assert!(text.contains("COUNTS     exact (trace point). 0 events dropped"));
    assert!(text.contains(r#"JOIN       DCGM_FI_DEV_XID_ERRORS{UUID="GPU-5c1e"}"#), "{text}");
}
