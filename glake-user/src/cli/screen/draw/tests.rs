use super::*;
use crate::cli::screen::ui::Act;
use crate::cli::view::tests::{sample, state};
use crate::events::heaps::{HeapFile, HeapGpu, HeapProcess, Heaps};
use crate::events::sample::{Histogram, NvmeCommands, NvmeController, XidCount};
use crate::host::inventory::{Gpu, Inventory};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::{Terminal, backend::TestBackend};

fn ui() -> Ui {
    Ui::new("agent 127.0.0.1:9464".into(), false)
}

fn screen(state: Option<&State>, ui: &Ui, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, ui)).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(row).collect()
}

fn press(ui: &mut Ui, state: &State, keys: &[KeyCode]) {
    for key in keys {
        let tables = tables(state, ui);
        ui.key(KeyEvent::new(*key, KeyModifiers::NONE), &tables);
    }
}

fn seen(n: u64) -> (State, Ui) {
    let mut ui = ui();
    ui.saw(&state(n));
    (state(n), ui)
}

/// Compares a screen with the one kept beside this file. `GLAKE_GOLDEN=write` keeps the new one: look at it then.
fn golden(name: &str, screen: &[String]) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/screen/draw/golden").join(name);
    let got = screen.join("\n") + "\n";
    if std::env::var_os("GLAKE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &got).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(got == kept, "{name} changed; expected:\n{kept}\ngot:\n{got}");
}

/// A host with two NVMe controllers, a GPU with an Xid, and trouble of every kind.
fn rich(n: u64) -> State {
    let one = |n: u64| {
        let mut s = sample(n);
        let mut slots = vec![0; glake_common::hist::SLOTS];
        slots[glake_common::hist::slot(92_000)] = 90_000 * n;
        slots[glake_common::hist::slot(31_000_000)] = 2_000 * n;
        let commands = |queue, opcode| NvmeCommands {
            queue,
            opcode,
            completed: 92_000 * n,
            bytes: Some(3_100_000_000 * n),
            latency: Histogram { slots: slots.clone(), sum_ns: 1 },
        };
        let controller = |name: &str, pci: &str| NvmeController {
            controller: name.into(),
            pci: Some(pci.into()),
            commands: vec![commands(1, 2), commands(2, 1), commands(0, 6)],
            retries: Some(3),
            timeouts: Some(0),
            resets: Some(0),
            in_flight: Some(988),
            ..Default::default()
        };
        s.nvme = Some(vec![controller("nvme0", "0000:81:00.0"), controller("nvme1", "0000:82:00.0")]);
        s.iommu = Some(crate::events::sample::Iommu {
            maps: 210_000 * n,
            unmaps: 210_000 * n,
            ..Default::default()
        });
        s.iommu_faults = Some(vec![]);
        s.swiotlb = Some(vec![]);
        s.aer = Some(vec![]);
        s.xid = Some(vec![XidCount {
            pci: "0000:3b:00.0".into(),
            code: 31,
            count: n,
            last: s.at,
            ..Default::default()
        }]);
        s
    };
    let gpu = |pci: &str, minor| Gpu {
        pci: pci.into(),
        uuid: None,
        minor: Some(minor),
        model: Some("NVIDIA H200".into()),
    };
    let host = Inventory {
        hostname: "gpu-node-17".into(),
        nvidia_driver: Some("580.159.04".into()),
        gpus: vec![gpu("0000:19:00.0", 0), gpu("0000:3b:00.0", 1)],
        ..Default::default()
    };
    State::between(&one(n), &one(n + 1), &host)
}

#[test]
fn the_overview_of_a_small_host() {
    let (state, ui) = seen(1);
    golden("small-80x24.txt", &screen(Some(&state), &ui, 80, 24));
}

#[test]
fn the_overview_of_a_gpu_host() {
    let (state, mut ui) = (rich(1), ui());
    ui.saw(&state);
    golden("rich-80x24.txt", &screen(Some(&state), &ui, 80, 24));
    golden("rich-132x30.txt", &screen(Some(&state), &ui, 132, 30));
    golden("rich-60x10.txt", &screen(Some(&state), &ui, 60, 10));
}

#[test]
fn what_glakes_allocator_holds_is_told_by_workload() {
    let mut newer = sample(2);
    let gpus = vec![HeapGpu {
        pci: Some("0000:3b:00.0".into()),
        allocated_bytes: 21 << 30,
        reserved_bytes: 28 << 30,
        ..HeapGpu::default()
    }];
    let said = HeapFile { gpus, ..HeapFile::default() };
    let process = |pid| HeapProcess {
        pid,
        cgroup_path: Some("/slurm/uid_7/job_4711/step_0".into()),
        said: said.clone(),
        ..HeapProcess::default()
    };
    newer.heaps = Some(Heaps { processes: vec![process(5), process(6)], ..Heaps::default() });
    let state = State::between(&sample(1), &newer, &Inventory::default());
    let mut ui = ui();
    ui.saw(&state);
    let screen = screen(Some(&state), &ui, 100, 24);
    let row = screen.iter().find(|l| l.contains("slurm 4711 (2 proc)")).expect("a row");
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(words[4..], ["0000:3b:00.0", "42.0", "GiB", "56.0", "GiB", "75%", "-", "0", "0"], "{row}");
}

#[test]
fn every_view_has_its_screen() {
    let state = rich(1);
    for (view, name) in
        View::ALL.into_iter().zip(["overview", "devices", "queues", "workloads", "probes"]).skip(1)
    {
        let mut ui = ui();
        ui.saw(&state);
        ui.view = view;
        golden(&format!("{name}-100x24.txt"), &screen(Some(&state), &ui, 100, 24));
    }
}

#[test]
fn help_and_queries_lie_over_the_screen() {
    let (state, mut ui) = seen(1);
    press(&mut ui, &state, &[KeyCode::Char('?')]);
    golden("help-80x24.txt", &screen(Some(&state), &ui, 80, 24));
    press(&mut ui, &state, &[KeyCode::Esc, KeyCode::Down, KeyCode::Char('e')]);
    golden("queries-80x24.txt", &screen(Some(&state), &ui, 80, 24));
    assert_eq!(ui.exported.len(), 3);
}

#[test]
fn no_size_breaks_the_screen() {
    let state = rich(1);
    for width in [1, 2, 5, 20, 40, 79, 80, 200, 400] {
        for height in [1, 2, 3, 4, 5, 8, 12, 23, 24, 60] {
            for view in View::ALL {
                let mut ui = ui();
                ui.saw(&state);
                (ui.view, ui.help, ui.selected) = (view, width % 2 == 0, Some(1));
                screen(Some(&state), &ui, width, height);
                screen(None, &ui, width, height);
            }
        }
    }
}

#[test]
fn a_source_that_stopped_is_stale_and_says_since_when_and_why() {
    let (state, mut ui) = seen(1);
    ui.link = Link::Stale { since: "00:53:22Z".into(), why: "127.0.0.1:9464: connection refused".into() };
    let lines = screen(Some(&state), &ui, 80, 24);
    assert_eq!(lines[1], "  STALE since 00:53:22Z: 127.0.0.1:9464: connection refused");
    ui.saw(&state);
    assert!(!screen(Some(&state), &ui, 80, 24)[1].contains("STALE"));
}

#[test]
fn a_filter_keeps_matching_rows_and_says_so() {
    let (state, mut ui) = seen(1);
    press(&mut ui, &state, &[KeyCode::Char('/'), KeyCode::Char('B'), KeyCode::Char('a'), KeyCode::Char('c')]);
    let text = screen(Some(&state), &ui, 80, 24).join("\n");
    assert!(
        text.contains("filter: Bac_") && text.contains("backup.service") && !text.contains("\n vda "),
        "{text}"
    );
    press(&mut ui, &state, &[KeyCode::Enter]);
    assert!(screen(Some(&state), &ui, 80, 24)[1].contains("only rows with \"Bac\""));
    press(&mut ui, &state, &[KeyCode::Esc]);
    assert!(screen(Some(&state), &ui, 80, 24).join("\n").contains("\n vda "));
}

#[test]
fn keys_do_what_the_last_line_says() {
    let (state, mut ui) = seen(1);
    let act = |ui: &mut Ui, code| ui.key(KeyEvent::new(code, KeyModifiers::NONE), &tables(&state, ui));
    act(&mut ui, KeyCode::Tab);
    assert_eq!(ui.view, View::Devices);
    act(&mut ui, KeyCode::BackTab);
    assert_eq!(ui.view, View::Overview);
    act(&mut ui, KeyCode::Char('p'));
    assert!(ui.paused && screen(Some(&state), &ui, 80, 24)[1].contains("PAUSED"));
    act(&mut ui, KeyCode::Char('p'));
    act(&mut ui, KeyCode::Char('s'));
    assert!(screen(Some(&state), &ui, 80, 24)[1].contains("sorted by reads"));
    assert_eq!(act(&mut ui, KeyCode::Char('r')), Act::Record);
    assert_eq!(act(&mut ui, KeyCode::Char('q')), Act::Quit);
    assert_eq!(ui.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), &[]), Act::Quit);
}

#[test]
fn typing_a_filter_is_no_command() {
    let (state, mut ui) = seen(1);
    press(&mut ui, &state, &[KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Char('r')]);
    assert_eq!(ui.filter, "qr");
}

#[test]
fn without_colours_nothing_is_coloured() {
    let state = rich(1);
    let mut ui = ui();
    ui.saw(&state);
    let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
    terminal.draw(|frame| draw(frame, Some(&state), &ui)).unwrap();
    let coloured = |fg| fg != ratatui::style::Color::Reset;
    assert!(!terminal.backend().buffer().content.iter().any(|c| coloured(c.fg) || coloured(c.bg)));
    ui.palette.colours = true;
    terminal.draw(|frame| draw(frame, Some(&state), &ui)).unwrap();
    assert!(terminal.backend().buffer().content.iter().any(|c| coloured(c.fg)));
}

#[test]
fn what_is_wrong_stands_first_and_says_what_to_do() {
    let (mut state, ui) = seen(2);
    state.findings.push(crate::telemetry::finding::Finding {
        rule: "uvm_kernel_memory_corrupted".into(),
        severity: "page".into(),
        uuid: None,
        pci: None,
        since: crate::clock::Stamp { monotonic_ns: 1, realtime_ns: 1 },
        what: "the kernel found memory corrupted".into(),
        evidence: Vec::new(),
        do_now: "drain this host".into(),
    });
    let lines = screen(Some(&state), &ui, 160, 40);
    let at = |text: &str| {
        lines.iter().position(|l| l.contains(text)).unwrap_or_else(|| panic!("{text}: {lines:#?}"))
    };
    assert!(at("uvm_kernel_memory_corrupted") < at("BLOCK "), "{lines:#?}");
    assert!(lines[at("uvm_kernel_memory_corrupted")].contains("drain this host"));
}

#[test]
fn gpu_health_is_shown_where_it_is_asked_for_and_says_since_when_it_is_not_known() {
    use crate::events::nvml::{Errors, GpuHealth, Health, Nvml, RemappedRows};
    let (mut state, ui) = seen(2);
    assert!(!screen(Some(&state), &ui, 160, 40).join("\n").contains("GPU HEALTH"), "not asked, not shown");
    let rows = RemappedRows { correctable: 11, uncorrectable: 1, pending: false, failure: true };
    let gpu = GpuHealth {
        pci: Some("0000:3b:00.0".into()),
        ecc_aggregate: Errors { corrected: Some(236_795), uncorrected: None },
        remapped_rows: Some(rows),
        ..GpuHealth::default()
    };
    state.nvml = Some(Nvml { health: Health::Answering, gpus: vec![gpu], ..Nvml::default() });
    let lines = screen(Some(&state), &ui, 160, 40);
    let line = lines.iter().find(|l| l.contains("0000:3b:00.0")).expect("its row");
    let cells: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(cells, ["0000:3b:00.0", "236795", "-", "12", "-", "FAILED", "-", "-", "-", "-"]);
    let since = Some(crate::clock::Stamp { monotonic_ns: 1, realtime_ns: 3_723_000_000_000 });
    let reason = Some("NVML has not answered for 9 s".into());
    state.nvml = Some(Nvml { health: Health::Silent, unknown_since: since, reason, ..Nvml::default() });
    let text = screen(Some(&state), &ui, 160, 40).join("\n");
    assert!(text.contains("unknown since 01:02:03Z: NVML has not answered for 9 s"), "{text}");
}
