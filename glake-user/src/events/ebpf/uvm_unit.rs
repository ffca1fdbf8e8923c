//! The probes on nvidia-uvm through the module's lives: attached when it comes, let go when it goes, and distrusted
//! when what they read is not what this driver's structures can hold.

use super::{
    Settings, UvmHooks,
    attach::{Kernel, ModuleTypes, Placed, Refusal, Ways, has_object},
    cgroups::Cgroups,
    group::{Missed, Unit},
    sizes::Host,
    table::Group,
    uvm::{Module, On, Uvms, holders},
};
use crate::{
    error::Kind,
    events::{
        event::What,
        sample::{ProbeState, Uvm, UvmGpu, add_row},
        uvm::entry::FatalReason,
    },
    sys::tracing::module_btf,
};
use glake_common::{record::Record, stat};
use std::{path::Path, sync::Arc};

/// Of so many events understood, one that is not means that the structures have another layout.
const TRUST: u64 = 1000;

/// What is known of the module that is attached now, and of earlier ones.
#[derive(Default)]
pub(crate) struct UvmUnit {
    module: Option<Module>,
    maps: Option<Uvms>,
    /// GPUs' counters of modules that are gone.
    earlier: Vec<UvmGpu>,
    /// What the last reading of a module that went was: its address spaces are told once more.
    last: Option<Uvm>,
    serials: u64,
    /// Events that were missed in earlier lives.
    pub(crate) missed: Missed,
    distrusted: bool,
    idle: Idle,
    /// The module's types, looked up once in its life: that takes CAP_SYS_ADMIN, which the agent drops after its start.
    types: Option<ModuleTypes>,
}

/// Looks without any address space after which fentry lets go.
const QUIET: u32 = 2;

/// Whether fentry has let go of the module, or soon will.
#[derive(Debug, Default)]
struct Idle {
    /// It has, and waits for a process.
    waits: bool,
    /// Address spaces that had begun at the last look: one that came and went since was use too.
    began: u64,
    /// Looks in a row that found no address space.
    quiet: u32,
    /// Somebody holds the module without using it, who may do so for ever: letting go again would not help.
    held_by_other: bool,
}

impl Idle {
    /// Whether to let go: `in_use`, whether a process has an address space.
    fn is_over(&mut self, in_use: bool) -> bool {
        if in_use {
            (self.quiet, self.held_by_other) = (0, false);
            return false;
        }
        self.quiet += 1;
        self.quiet >= QUIET && !self.held_by_other
    }
}

impl UvmUnit {
    /// Whether the probes are attached.
    pub(crate) fn is_on(&self) -> bool {
        self.maps.is_some()
    }

    /// Attaches or lets go. Gives what to say about it; `{}` stands for the seconds since the previous look.
    pub(crate) fn look(
        &mut self,
        unit: &mut Unit,
        kernel: &mut Kernel,
        settings: &Settings,
        host: Host,
        cgroups: &mut Cgroups,
    ) -> Option<String> {
        let now = Module::loaded(kernel.root());
        if now.is_some() && now == self.module {
            return self.look_for_users(unit, kernel, settings, host, cgroups);
        }
        let first = self.module.is_none() && now.is_none();
        // Nothing was there and nothing is, and that was said.
        if first && unit.probes.iter().any(|p| p.why.is_some()) {
            return None;
        }
        (self.idle, self.types) = (Idle::default(), None);
        let went = self.module.take().map(|_| self.let_go(unit, cgroups));
        self.module = now;
        if now.is_none() || !has_object() {
            let missing = Refusal::absent("nvidia_uvm is not loaded".to_owned());
            let root = kernel.root().to_owned();
            for probe in &mut unit.probes {
                probe.off(ProbeState::Off, missing.clone());
                probe.await_module(&root);
            }
            return went.map(|()| "detached: nvidia_uvm was unloaded within the last {} s".to_owned());
        }
        self.attach(unit, kernel, settings, host);
        self.is_on().then(|| {
            let again = if went.is_some() { "was loaded anew" } else { "was loaded" };
            format!("attached: nvidia_uvm {again}; what it did before, {{}} s at most, is not counted")
        })
    }

    /// Lets go of a module that nobody uses if we are what keeps it from being unloaded, and attaches again when somebody does.
    fn look_for_users(
        &mut self,
        unit: &mut Unit,
        kernel: &mut Kernel,
        settings: &Settings,
        host: Host,
        cgroups: &mut Cgroups,
    ) -> Option<String> {
        if self.idle.waits {
            if holders(kernel.root()) == Some(0) {
                return None;
            }
            self.idle = Idle { held_by_other: true, ..Idle::default() };
            self.attach(unit, kernel, settings, host);
            return self.is_on().then(|| {
                "attached: a process has opened nvidia_uvm; what it did before, {} s at most, is not counted"
                    .to_owned()
            });
        }
        let maps = self.maps.as_ref()?;
        let holds = unit.probes.iter().any(Placed::holds_module);
        // A kernel that does not tell who holds a module cannot unload one either.
        let began = unit.stat(stat::UVM_SERIALS);
        let came = std::mem::replace(&mut self.idle.began, began) != began;
        let in_use = came || maps.in_use();
        if !holds || holders(kernel.root()).is_none() || !self.idle.is_over(in_use) {
            return None;
        }
        self.let_go(unit, cgroups);
        self.idle.waits = true;
        let why = "let go until a process opens nvidia_uvm: fentry would keep the module from being unloaded";
        for probe in &mut unit.probes {
            probe.off(ProbeState::Off, Refusal::absent(why.to_owned()));
        }
        Some("detached: no process uses nvidia_uvm, and fentry would keep it from being unloaded".to_owned())
    }

    fn attach(&mut self, unit: &mut Unit, kernel: &mut Kernel, settings: &Settings, host: Host) {
        if let Err(e) = kernel.look_at_uvm() {
            unit.fail(&e);
            return;
        }
        unit.load(kernel, host, settings, true);
        let Some(armed) = &mut unit.armed else { return };
        match Uvms::new(&mut armed.loaded, self.serials) {
            Ok(maps) => self.maps = Some(maps),
            Err(e) => {
                unit.fail(&e);
                return;
            }
        }
        if let Some(armed) = &mut unit.armed {
            armed.loaded.set_types(self.types.get_or_insert_with(|| types(kernel.root())).clone());
        }
        unit.arrange(kernel, settings, ways(settings.uvm_hooks), &[]);
        if let Some(layout) = kernel.uvm_layout() {
            let has_types = layout.functions.is_some();
            for probe in unit.probes.iter_mut().filter(|p| p.is_on()) {
                let why = why(settings.uvm_hooks, probe.holds_module(), has_types);
                probe.how.push_str(&format!("{why}; {}, driver {}", layout.from, layout.version));
            }
        }
        if !unit.is_on("uvm_faults") {
            return;
        }
        // Only now, so that no process can slip in between.
        let visited = unit.armed.as_mut().map(|a| a.loaded.visit_open_files());
        if let (Some(Err(e)), Some(probe)) =
            (visited, unit.probes.iter_mut().find(|p| p.entry.name == "uvm_spaces"))
        {
            probe.how.push_str(&format!(
                "; processes older than the agent are told at their first CPU fault: {e}"
            ));
        }
    }

    /// Takes the last reading of a module that went and frees its probes.
    fn let_go(&mut self, unit: &mut Unit, cgroups: &mut Cgroups) {
        self.missed.add(unit);
        let on = on(unit);
        self.serials += unit.stat(stat::UVM_SERIALS);
        if let Some(mut maps) = self.maps.take() {
            let mut last = maps.read(on, cgroups);
            merge(&mut self.earlier, std::mem::take(&mut last.gpus));
            self.last.get_or_insert_default().spaces.extend(last.spaces);
        }
        self.distrusted = false;
        *unit = Unit::new(Group::Uvm);
    }

    /// Everything counted so far. `None`: nothing is watched. The first reading after such a one counts from zero, or all before it
    /// would be taken for new.
    pub(crate) fn read(&mut self, unit: &mut Unit, cgroups: &mut Cgroups) -> Option<Uvm> {
        self.judge(unit);
        let on = on(unit);
        let last = self.last.take();
        let now = self.maps.as_mut().filter(|_| on.notify && !self.distrusted).map(|m| m.read(on, cgroups));
        let mut both = match (last, now) {
            (None, None) => {
                self.earlier.clear();
                return None;
            }
            (Some(last), None) => last,
            (None, Some(now)) => now,
            (Some(mut last), Some(now)) => {
                last.spaces.extend(now.spaces);
                last.gpus = now.gpus;
                last
            }
        };
        let now = std::mem::replace(&mut both.gpus, self.earlier.clone());
        merge(&mut both.gpus, now);
        Some(both)
    }

    /// Takes the probes off when too much of what they read cannot be.
    fn judge(&mut self, unit: &mut Unit) {
        let (bad, seen) = (unit.stat(stat::UVM_IMPLAUSIBLE), unit.stat(stat::UVM_SEEN));
        if self.distrusted || !is_distrusted(bad, seen) {
            return;
        }
        self.distrusted = true;
        let reason = format!(
            "{bad} of {} events do not fit the structures that this driver should have: nothing is counted",
            bad + seen
        );
        let remedy = "report the driver's version and flavour; `glake uvm --pid PID` does not depend on them";
        for probe in &mut unit.probes {
            probe.off(ProbeState::Failed, Refusal::new(reason.clone(), Some(remedy.to_owned())));
        }
    }

    /// A fatal fault as an event.
    pub(crate) fn fatal(&self, record: &Record) -> What {
        let (processor, reason, access) = (record.b >> 16, (record.b >> 8) as u8, record.b as u8);
        // `uvm_fault_access_type_t` of uvm_hal_types.h.
        let access = match access {
            0 => Some("prefetch"),
            1 => Some("read"),
            2 => Some("write"),
            3 | 4 => Some("atomic"),
            _ => None,
        };
        What::UvmFatal {
            tgid: (record.a != 0).then_some(record.a),
            uuid: self.maps.as_ref().and_then(|m| m.uuid(processor)),
            address: record.value,
            access: access.map(str::to_owned),
            reason: FatalReason::of(reason).word().to_owned(),
        }
    }
}

fn types(root: &Path) -> ModuleTypes {
    let remedy = "needs CAP_SYS_ADMIN, which the agent drops after its start: restart the agent";
    module_btf("nvidia_uvm").map(Arc::new).map_err(|e| match e.kind() {
        Kind::Denied => Refusal::of(&e.remedy(remedy)),
        _ => Refusal::direct(root, &e),
    })
}

/// Why a probe is where it is, unless its line says so already: that the other way was refused.
fn why(hooks: UvmHooks, direct: bool, has_types: bool) -> &'static str {
    match (hooks, direct) {
        (UvmHooks::Fentry, true) | (UvmHooks::Kprobe, false) => ", as uvm_hooks says",
        (UvmHooks::Auto, false) if has_types => ", not fentry: it would hold the module",
        (UvmHooks::Auto, false) => ", not fentry: the module has no BTF",
        _ => "",
    }
}

pub(super) fn ways(hooks: UvmHooks) -> Ways {
    match hooks {
        UvmHooks::Auto => Ways::Any,
        UvmHooks::Kprobe => Ways::NotDirect,
        UvmHooks::Fentry => Ways::DirectFirst,
    }
}

fn on(unit: &Unit) -> On {
    let is = |name: &str| unit.is_on(name);
    On {
        notify: is("uvm_faults"),
        service: is("uvm_service") && is("uvm_service_end"),
        batches: is("uvm_batches"),
        replays: is("uvm_replays"),
        evictions: is("uvm_evict"),
        thrashing: is("uvm_thrash"),
        throttling: is("uvm_throttle") && is("uvm_throttle_end"),
        fatal: is("uvm_fatal"),
    }
}

fn is_distrusted(bad: u64, seen: u64) -> bool {
    bad.saturating_mul(TRUST) > seen
}

/// Adds counters of GPUs to those of the same UUID.
fn merge(into: &mut Vec<UvmGpu>, more: Vec<UvmGpu>) {
    for gpu in more {
        let Some(known) = into.iter_mut().find(|g| g.uuid == gpu.uuid) else {
            into.push(gpu);
            continue;
        };
        let sum = |a: Option<u64>, b: Option<u64>| if a.is_none() { b } else { Some(a? + b.unwrap_or(0)) };
        known.replays = sum(known.replays, gpu.replays);
        known.evictions = sum(known.evictions, gpu.evictions);
        known.batched_faults = sum(known.batched_faults, gpu.batched_faults);
        if let Some(batches) = gpu.batches {
            add_row(known.batches.get_or_insert_default(), &batches);
        }
        if let Some(service) = gpu.service {
            known.service.get_or_insert_default().add(&service);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::sample::Histogram;

    #[test]
    fn fentry_lets_go_after_two_looks_without_an_address_space() {
        let mut idle = Idle::default();
        let looks = [false, true, false, false, false].map(|in_use| idle.is_over(in_use));
        assert_eq!(looks, [false, false, false, true, true]);
    }

    #[test]
    fn it_stays_while_somebody_holds_the_module_without_using_it() {
        let mut idle = Idle { held_by_other: true, ..Idle::default() };
        assert!((0..9).all(|_| !idle.is_over(false)), "it would only come back at once");
        let after_a_job = [true, false, false].map(|in_use| idle.is_over(in_use));
        assert_eq!(after_a_job, [false, false, true]);
    }

    #[test]
    fn what_was_counted_before_a_reading_of_nothing_does_not_come_again() {
        let mut uvm = UvmUnit {
            earlier: vec![gpu(Some("GPU-1"), 9, &[])],
            last: Some(Uvm::default()),
            ..UvmUnit::default()
        };
        let root = tempfile::tempdir().expect("a folder");
        let (mut unit, mut cgroups) = (Unit::new(Group::Uvm), Cgroups::new(root.path()));
        let last = uvm.read(&mut unit, &mut cgroups).expect("the last interval is told");
        assert_eq!(last.gpus[0].replays, Some(9));
        assert_eq!(uvm.read(&mut unit, &mut cgroups), None);
        uvm.last = Some(Uvm::default());
        assert_eq!(uvm.read(&mut unit, &mut cgroups).expect("watched again").gpus, []);
    }

    fn gpu(uuid: Option<&str>, replays: u64, batches: &[u64]) -> UvmGpu {
        UvmGpu {
            uuid: uuid.map(str::to_owned),
            replays: Some(replays),
            batches: Some(batches.to_vec()),
            service: Some(Histogram { slots: vec![1, 2], sum_ns: 30 }),
            ..UvmGpu::default()
        }
    }

    #[test]
    fn counters_go_on_where_an_earlier_life_of_the_module_ended() {
        let mut all = vec![gpu(Some("GPU-a"), 5, &[1, 2])];
        merge(&mut all, vec![gpu(Some("GPU-a"), 7, &[0, 0, 4]), gpu(None, 1, &[])]);
        assert_eq!(all.len(), 2, "a GPU that could not be told is another one");
        assert_eq!((all[0].replays, all[0].batches.as_deref()), (Some(12), Some(&[1, 2, 4][..])));
        assert_eq!(all[0].service, Some(Histogram { slots: vec![2, 4], sum_ns: 60 }));
        assert_eq!(all[0].evictions, None, "never watched is unknown");
    }

    #[test]
    fn one_odd_event_in_a_thousand_is_not_yet_another_layout() {
        assert!(!is_distrusted(0, 0));
        assert!(is_distrusted(1, 0), "the very first event does not fit");
        assert!(is_distrusted(1, 999));
        assert!(!is_distrusted(1, 1000));
    }

    #[test]
    fn a_fatal_fault_comes_with_all_that_is_known_and_no_more() {
        let unit = UvmUnit::default();
        let record =
            |a, b| Record { kind: 9, a, at_ns: 0, value: 0x7000, b, spare: 0, name: [0; 32], text: [0; 128] };
        let what = unit.fatal(&record(41, 1 << 16 | 1 << 8 | 2));
        let What::UvmFatal { tgid, uuid, address, access, reason } = what else { panic!("{what:?}") };
        assert_eq!((tgid, uuid, address), (Some(41), None, 0x7000));
        assert_eq!((access.as_deref(), reason.as_str()), (Some("write"), "invalid_address"));
        let what = unit.fatal(&record(0, 0xff));
        assert!(matches!(what, What::UvmFatal { tgid: None, access: None, .. }), "{what:?}");
    }
}
