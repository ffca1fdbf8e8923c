use super::*;
use proptest::prelude::*;

fn xid(text: &str) -> Report {
    match line(text) {
        Some(Line::Report(found)) => found,
        other => panic!("{text:?} gave {other:?}"),
    }
}

#[test]
fn the_driver_s_line_gives_process_place_and_text() {
    let found =
        xid("NVRM: Xid (PCI:0000:3b:00): 31, pid=88213, name=VLLM::EngineCore, Ch 00000010, intr 00000000. \
                     MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_4 faulted @ 0x7f3a_1c200000. \
                     Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ");
    assert_eq!(found.pci, "0000:3b:00.0");
    assert_eq!((found.code, found.pid), (31, Some(88213)));
    assert_eq!(found.name.as_deref(), Some("VLLM::EngineCore"));
    assert!(found.message.starts_with("Ch 00000010"), "{}", found.message);
    let fault = mmu_fault(&found.message).expect("an MMU fault");
    assert_eq!(fault.address, Some(0x7f3a_1c20_0000));
    assert_eq!(fault.engine.as_deref(), Some("GRAPHICS GPC3 GPCCLIENT_T1_4"));
    assert_eq!(fault.fault.as_deref(), Some("FAULT_PDE"));
    assert_eq!(fault.access.as_deref(), Some("read"));
}

#[test]
fn unknown_processes_are_unknown_in_every_spelling() {
    for process in ["pid='<unknown>', name=<unknown>, ", "pid=, name=, ", "pid=0, name='<unknown>', ", ""] {
        let found = xid(&format!("NVRM: Xid (PCI:0000:38:00): 13, {process}Graphics Exception"));
        assert_eq!((found.pid, found.name), (None, None), "{process}");
        assert_eq!(found.message, "Graphics Exception");
    }
}

#[test]
fn old_lines_without_a_process_still_have_one_code_and_one_text() {
    let found = xid("[ 1234.567890] NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.");
    assert_eq!((found.code, found.pid), (79, None));
    assert_eq!(found.message, "GPU has fallen off the bus.");
    let found = xid("NVRM: Xid (0000:41:00): 48, DBE");
    assert_eq!((found.pci.as_str(), found.code), ("0000:41:00.0", 48));
}

#[test]
fn instances_of_a_divided_gpu_are_told_apart() {
    let found = xid("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9).");
    assert_eq!((found.gpu_instance, found.compute_instance, found.pid), (Some(5), None, Some(7194)));
    let found = xid("NVRM: Xid (PCI:0000:01:00 GPU-I:02 GPU-CI:01): 43, pid=5, name=a, Ch 8");
    assert_eq!((found.gpu_instance, found.compute_instance), (Some(2), Some(1)));
}

#[test]
fn a_cause_named_by_the_driver_is_read() {
    let found = xid("NVRM: Xid (PCI:0000:3b:00): 45, pid=9, name=x, Ch 00000008 caused by previous Xid 31");
    assert_eq!(found.caused_by, Some(31));
}

#[test]
fn a_switch_s_report_is_no_gpu_s() {
    let found = xid(
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error",
    );
    assert!(found.nvswitch);
    assert_eq!((found.pci.as_str(), found.code), ("0000:c3:00.0", 12028));
    assert_eq!(line("nvidia-nvswitch3: open (major=510)"), None);
}

#[test]
fn the_uuid_line_is_read() {
    let want = Line::Uuid { pci: "0000:3b:00.0".into(), uuid: "GPU-5c1e0000-1111".into() };
    assert_eq!(line("NVRM: GPU at PCI:0000:3b:00: GPU-5c1e0000-1111"), Some(want));
}

#[test]
fn a_gpu_that_fell_off_is_known_without_a_code() {
    let off = |pci: &str| Some(Line::FellOff { pci: pci.into() });
    assert_eq!(line("NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus."), off("0000:b3:00.0"));
    assert_eq!(line("NVRM: GPU at 0000:b3:00.0 has fallen off the bus."), off("0000:b3:00.0"));
    assert_eq!(
        line("NVRM: The NVIDIA GPU 0000:b3:00.0"),
        Some(Line::FellOffFirst { pci: "0000:b3:00.0".into() })
    );
    assert_eq!(line("NVRM: fallen off the bus and is not responding to commands."), Some(Line::FellOffLast));
}

#[test]
fn lines_about_other_things_are_left_alone() {
    for text in [
        "",
        "NVRM: ",
        "NVRM: Xid",
        "NVRM: Xid (PCI:0000:3b:00): , x",
        "NVRM: Xid (PCI:nonsense): 31, x",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04",
        "nvidia: probe of 0000:b3:00.0 failed with error -1",
        "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    ] {
        assert_eq!(line(text), None, "{text:?}");
    }
}

#[test]
fn an_address_keeps_the_zeros_of_its_low_half() {
    let at = |text: &str| {
        mmu_fault(&format!("MMU Fault: ENGINE CE2 HUBCLIENT_CE0 faulted @ {text}. Fault is of type X Y"))
            .and_then(|f| f.address)
    };
    assert_eq!(at("0x7f3a_00000010"), Some(0x7f3a_0000_0010));
    assert_eq!(at("0x0_00000000"), Some(0));
    assert_eq!(at("0x7f3a1c200000"), Some(0x7f3a_1c20_0000));
    assert_eq!(at("elsewhere"), None);
}

proptest! {
    #[test]
    fn any_text_gives_a_line_or_nothing(text in "\\PC{0,200}") {
        let _ = line(&text);
        let _ = line(&format!("NVRM: {text}"));
        let _ = mmu_fault(&format!("MMU Fault: ENGINE {text}"));
    }

    #[test]
    fn a_damaged_line_never_panics(cut in 0usize..200, insert in "\\PC{0,8}") {
        let whole = "NVRM: Xid (PCI:0000:01:00 GPU-I:02 GPU-CI:01): 31, pid=5, name=a, Ch 8. MMU Fault: ENGINE \
                     GRAPHICS faulted @ 0x7f3a_1c200000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ";
        let cut = cut.min(whole.len());
        let text = format!("{}{insert}{}", &whole[..cut], &whole[cut..]);
        if let Some(Line::Report(found)) = line(&text) {
            let _ = mmu_fault(&found.message);
        }
    }
}

#[test]
fn a_place_in_memory_is_one_however_it_is_spelt() {
    for text in [
        "Uncorrectable DRAM error FBPA 9 subpartition 1",
        "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 9, subpartition 1.",
        "fbpa: 9, subpartition: 1",
    ] {
        assert_eq!(memory_site(text).as_deref(), Some("FBPA 9 subpartition 1"), "{text}");
    }
    assert_eq!(memory_site("FBPA 11").as_deref(), Some("FBPA 11"));
    for text in ["", "DBE", "subpartition 1", "FBPA x", "partition 99999999999"] {
        assert_eq!(memory_site(text), None, "{text}");
    }
}

#[test]
fn an_exception_of_an_sm_has_a_place_and_words() {
    let found = sm_exception("Graphics SM Warp Exception on (GPC 9, TPC 1, SM 1): Out Of Range Address")
        .expect("one");
    assert_eq!((found.place.as_str(), found.words.as_str()), ("GPC 9, TPC 1, SM 1", "Out Of Range Address"));
    assert!(found.of_a_warp);
    let whole = sm_exception("Graphics SM Global Exception on (GPC 8, TPC 5, SM 1): Multiple Warp Errors");
    assert!(whole.is_some_and(|e| !e.of_a_warp));
    assert_eq!(sm_exception("Graphics Exception: ESR 0x546fb0=0x11f000e"), None);
}
