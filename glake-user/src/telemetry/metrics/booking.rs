//! Growth is booked to workloads: once, to the workload that caused it if that one has a name at that moment, else to
//! `other`. So the series of all workloads add up to everything that happened, and no series falls when names change.

use super::{ledger::Labels, table::Family};
use crate::{host::workload::Workload, telemetry::model::IsWorkload};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Workloads with a name at one time; `other` comes on top.
pub const NAMED: usize = 31;
/// Names change at most this often.
pub const ELECTION_NS: u64 = 60 * 1_000_000_000;
/// A name ends after this long without activity.
pub const IDLE_NS: u64 = 600 * 1_000_000_000;
/// A newcomer takes the place of the least active workload only if it does this many times more: no flapping.
const TAKE_OVER: u64 = 2;
/// Ended workloads whose totals are kept, so that their series go on where they ended if they come back.
const REMEMBERED: usize = 4_096;

/// The totals of one workload.
type Account = BTreeMap<(&'static str, Labels), u64>;

#[derive(Debug)]
struct Named {
    account: Account,
    /// Active since the last call of [`Booking::settle`].
    busy: bool,
    active_ns: u64,
    /// Activity since the last election.
    recent: u64,
}

/// What is booked to workloads.
#[derive(Debug, Default)]
pub struct Booking {
    named: BTreeMap<Workload, Named>,
    other: Account,
    candidates: BTreeMap<Workload, u64>,
    ended: BTreeMap<Workload, Account>,
    ended_order: VecDeque<Workload>,
    elected_ns: Option<u64>,
    /// The cells that exist, by family.
    touched: BTreeMap<&'static str, Cells>,
}

#[derive(Debug)]
struct Cells {
    max: usize,
    labels: BTreeSet<Labels>,
}

impl Cells {
    /// Whether every workload can have every cell.
    fn fit_all(&self) -> bool {
        self.labels.len() * (NAMED + 1) <= self.max
    }
}

impl Booking {
    /// Books `growth` of a family with the labels that follow those of the workload. `activity` is what makes a
    /// workload worth a name, in bytes or something like it.
    pub fn book(&mut self, who: &IsWorkload, cell: (&'static Family, Labels), growth: u64, activity: u64) {
        let key = (cell.0.name, cell.1);
        let full = !self.has_room(cell.0, &key);
        let account = match who {
            IsWorkload::Named(workload) => match self.named.get_mut(workload) {
                Some(named) => {
                    named.busy |= activity > 0;
                    named.recent = named.recent.saturating_add(activity);
                    if full && !named.account.contains_key(&key) {
                        &mut self.other
                    } else {
                        &mut named.account
                    }
                }
                None => {
                    let so_far = self.candidates.entry(workload.clone()).or_default();
                    *so_far = so_far.saturating_add(activity);
                    &mut self.other
                }
            },
            IsWorkload::Unnamed | IsWorkload::Shared | IsWorkload::Unknown => &mut self.other,
        };
        *account.entry(key).or_default() += growth;
    }

    /// Notes the cell, and whether a named workload may have it without taking more series than the family has.
    fn has_room(&mut self, family: &'static Family, key: &(&'static str, Labels)) -> bool {
        let cells = self
            .touched
            .entry(family.name)
            .or_insert_with(|| Cells { max: family.max, labels: BTreeSet::new() });
        if !cells.labels.contains(&key.1) {
            cells.labels.insert(key.1.clone());
        }
        if cells.fit_all() {
            return true;
        }
        let taken = |account: &Account| account.keys().filter(|(name, _)| *name == family.name).count();
        // `other` may come to have every cell.
        let reserved = cells.labels.len();
        self.named.values().map(|named| taken(&named.account)).sum::<usize>() + reserved < family.max
    }

    /// Ends one round of booking at `now_ns`: names end and begin here, after the growth was booked, so that a new
    /// series starts at 0.
    pub fn settle(&mut self, now_ns: u64) {
        for named in self.named.values_mut() {
            if std::mem::take(&mut named.busy) {
                named.active_ns = now_ns;
            }
        }
        let due = self.elected_ns.is_none_or(|at| now_ns.saturating_sub(at) >= ELECTION_NS);
        if !due {
            return;
        }
        let idle = self.named.iter().filter(|(_, n)| now_ns.saturating_sub(n.active_ns) >= IDLE_NS);
        let idle: Vec<Workload> = idle.map(|(workload, _)| workload.clone()).collect();
        let mut changed = !idle.is_empty();
        idle.iter().for_each(|workload| self.end(workload));
        changed |= self.elect(now_ns);
        self.candidates.clear();
        self.named.values_mut().for_each(|named| named.recent = 0);
        // The first round waits for somebody to name, not for the minute.
        if changed || self.elected_ns.is_some() {
            self.elected_ns = Some(now_ns);
        }
    }

    fn elect(&mut self, now_ns: u64) -> bool {
        let mut newcomers: Vec<(u64, Workload)> = std::mem::take(&mut self.candidates)
            .into_iter()
            .map(|(w, n)| (n, w))
            .filter(|(n, _)| *n > 0)
            .collect();
        // Most active first; names decide between equals, so that the outcome does not depend on chance.
        newcomers.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut changed = false;
        for (activity, workload) in newcomers {
            if self.named.len() >= NAMED {
                let least =
                    self.named.iter().min_by_key(|(_, n)| n.recent).map(|(w, n)| (w.clone(), n.recent));
                let Some((least, recent)) = least else { break };
                if activity <= recent.saturating_mul(TAKE_OVER) {
                    break;
                }
                self.end(&least);
            }
            self.begin(workload, activity, now_ns);
            changed = true;
        }
        changed
    }

    fn begin(&mut self, workload: Workload, recent: u64, now_ns: u64) {
        let mut account = self.ended.remove(&workload).unwrap_or_default();
        self.ended_order.retain(|w| *w != workload);
        // Every cell exists at 0 from the start, or the first growth would be invisible to rate().
        for (name, cells) in self.touched.iter().filter(|(_, cells)| cells.fit_all()) {
            for labels in &cells.labels {
                account.entry((*name, labels.clone())).or_default();
            }
        }
        self.named.insert(workload, Named { account, busy: false, active_ns: now_ns, recent });
    }

    fn end(&mut self, workload: &Workload) {
        let Some(named) = self.named.remove(workload) else { return };
        self.ended.insert(workload.clone(), named.account);
        self.ended_order.push_back(workload.clone());
        if self.ended_order.len() > REMEMBERED
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }

    /// The series of a family: the labels of the workload, then the cell's own.
    pub fn series(&self, family: &Family) -> Vec<(Labels, u64)> {
        let of = |workload: &Workload, account: &Account| -> Vec<(Labels, u64)> {
            let cells = account.iter().filter(|((name, _), _)| *name == family.name);
            let labels = workload.labels();
            cells.map(|((_, own), total)| (labels.iter().chain(own).cloned().collect(), *total)).collect()
        };
        let named = self.named.iter().flat_map(|(workload, named)| of(workload, &named.account));
        named.chain(of(&Workload::OTHER, &self.other)).collect()
    }

    /// The workloads that have a name now.
    pub fn names(&self) -> impl Iterator<Item = &Workload> {
        self.named.keys()
    }
}
