//! What the kernel log says when NVIDIA's managed-memory module has hurt the kernel itself: memory found corrupted, or a CPU that
//! does not come back. Such a report is a block of lines; only a call trace with the module in it counts, since its name stands in
//! the list of modules of every block.
//!
//! Heads: `bad_page` of mm/page_alloc.c, `print_cpu_stall` and `print_other_cpu_stall` of kernel/rcu/tree_stall.h,
//! `watchdog_timer_fn` of kernel/watchdog.c, Linux 5.4 to 6.18.

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A page was given back in a state that no page may have: memory of the kernel is corrupted.
    BadPage,
    /// A CPU spins inside the module and does not come back.
    Stall,
}

/// One report with nvidia_uvm in its call trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What.
    pub kind: Kind,
    /// The task on the CPU then.
    pub task: Option<String>,
    /// Its number in the initial pid namespace.
    pub pid: Option<u32>,
    /// It was pushing memory out of the GPU.
    pub evicting: bool,
    /// The functions of the module in the trace, innermost first, at most [`FRAMES`].
    pub frames: Vec<String>,
}

/// Functions kept of a trace.
pub const FRAMES: usize = 8;
/// A block without an end is over after so many lines, or after this time.
const LINES: usize = 160;
const OPEN_NS: u64 = 2_000_000_000;

#[derive(Debug)]
struct Block {
    since: u64,
    lines: usize,
    trouble: Trouble,
}

/// Reads a log line by line.
#[derive(Debug, Default)]
pub struct Troubles {
    open: Option<Block>,
}

impl Troubles {
    /// Takes the next line; gives the block that it ends. `at` is its time in ns on any one clock.
    pub fn line(&mut self, at: u64, text: &str) -> Option<Trouble> {
        if let Some(kind) = head(text) {
            let before = self.end();
            let trouble = Trouble { kind, task: None, pid: None, evicting: false, frames: Vec::new() };
            let mut block = Block { since: at, lines: 0, trouble };
            block.who(text);
            self.open = Some(block);
            return before;
        }
        let block = self.open.as_mut()?;
        block.lines += 1;
        block.who(text);
        block.frame(text);
        let ended = text.contains("</TASK>") || text.contains("---[ end trace") || block.lines >= LINES;
        if ended || at.saturating_sub(block.since) > OPEN_NS { self.end() } else { None }
    }

    /// The open block, where it has been open long enough at `now`: a log may fall silent in the middle.
    pub fn flush(&mut self, now: u64) -> Option<Trouble> {
        self.open.as_ref().filter(|block| now.saturating_sub(block.since) > OPEN_NS)?;
        self.end()
    }

    /// The open block: the log has ended.
    pub fn end(&mut self) -> Option<Trouble> {
        let trouble = self.open.take()?.trouble;
        (!trouble.frames.is_empty()).then_some(trouble)
    }
}

fn head(text: &str) -> Option<Kind> {
    if text.contains("BUG: Bad page state in process ") {
        return Some(Kind::BadPage);
    }
    let stall = text.contains("rcu: INFO: rcu_") && text.contains(" stall")
        || text.contains("BUG: soft lockup - CPU#");
    stall.then_some(Kind::Stall)
}

impl Block {
    /// `CPU: 12 PID: 900 Comm: UVM GPU1 BH Tainted: ...`, `[UVM GPU1 BH:900]`, `in process python  pfn:1`.
    fn who(&mut self, text: &str) {
        let found = comm(text).or_else(|| lockup(text)).or_else(|| {
            let (_, rest) = text.split_once("in process ")?;
            Some((rest.split_once("  pfn:")?.0.to_owned(), None))
        });
        if let Some((task, pid)) = found.filter(|(task, _)| !task.is_empty()) {
            self.trouble.task.get_or_insert(task);
            self.trouble.pid = self.trouble.pid.or(pid);
        }
    }

    /// `uvm_spin_loop+0x1c/0x60 [nvidia_uvm]`, behind `RIP: 0010:` too. A `?` marks what the kernel only guesses.
    fn frame(&mut self, text: &str) {
        let Some((before, _)) = text.split_once(" [nvidia_uvm]") else { return };
        let Some(function) = before.split([' ', ':']).next_back().and_then(|f| f.split_once("+0x")) else {
            return;
        };
        if before.contains("? ") || self.trouble.frames.len() >= FRAMES {
            return;
        }
        self.trouble.evicting |= function.0.contains("evict");
        self.trouble.frames.push(function.0.to_owned());
    }
}

fn comm(text: &str) -> Option<(String, Option<u32>)> {
    let (head, rest) = text.split_once(" Comm: ")?;
    let pid = head.split_once("PID: ").and_then(|(_, n)| n.split_whitespace().next()?.parse().ok());
    let ends = [" Tainted:", " Not tainted", " Kdump:"];
    let end = ends.iter().filter_map(|e| rest.find(e)).min().unwrap_or(rest.len());
    Some((rest[..end].trim().to_owned(), pid))
}

fn lockup(text: &str) -> Option<(String, Option<u32>)> {
    let (_, rest) = text.split_once("s! [")?;
    let (task, pid) = rest.strip_suffix(']')?.rsplit_once(':')?;
    Some((task.to_owned(), pid.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(log: &str) -> Vec<Trouble> {
        let mut troubles = Troubles::default();
        let mut all: Vec<Trouble> =
            log.lines().zip(0..).filter_map(|(text, i)| troubles.line(i * 1000, text)).collect();
        all.extend(troubles.end());
        all
    }

    const BAD_PAGE: &str = "BUG: Bad page state in process python3  pfn:8c3f2a\n\
        page:00000000a0 refcount:-1 mapcount:0 mapping:0000000000000000 index:0x0 pfn:0x8c3f2a\n\
        Modules linked in: nvidia_uvm(OE) nvidia(OE) overlay\n\
        CPU: 17 PID: 41873 Comm: python3 Tainted: P           OE      6.14.0\nCall Trace:\n <TASK>\n \
        dump_stack_lvl+0x76/0xa0\n bad_page+0x76/0x120\n free_unref_folios+0x1a2/0x4e0\n \
        ? __pfx_x+0x10/0x10 [nvidia_uvm]\n uvm_hmm_devmem_free+0x5c/0x90 [nvidia_uvm]\n </TASK>";

    #[test]
    fn a_bad_page_counts_where_the_module_is_in_the_trace_and_not_where_it_is_only_loaded() {
        let found = read(BAD_PAGE);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].kind, found[0].task.as_deref(), found[0].pid),
            (Kind::BadPage, Some("python3"), Some(41_873))
        );
        assert_eq!(found[0].frames, ["uvm_hmm_devmem_free"], "what the kernel guesses is left out");
        let elsewhere = BAD_PAGE.replace(" [nvidia_uvm]", " [ext4]");
        assert!(elsewhere.contains("nvidia_uvm(OE)"));
        assert_eq!(read(&elsewhere), []);
    }

    #[test]
    fn a_cpu_that_spins_in_eviction_is_told_by_both_watchdogs() {
        let trace = "Call Trace:\n <TASK>\n uvm_spin_loop+0x1c/0x60 [nvidia_uvm]\n \
                     pick_and_evict_root_chunk+0x84/0x1f0 [nvidia_uvm]\n kthread+0xe1/0x110\n </TASK>";
        let rcu = format!(
            "rcu: INFO: rcu_preempt self-detected stall on CPU\nrcu: 12-....: (14999 ticks this GP)\n\
             CPU: 12 PID: 900 Comm: UVM GPU1 BH Tainted: P OE 6.14.0\n{trace}"
        );
        let soft = format!("watchdog: BUG: soft lockup - CPU#12 stuck for 26s! [UVM GPU1 BH:900]\n{trace}");
        for log in [rcu, soft] {
            let found = read(&log);
            assert_eq!(found.len(), 1, "{log}");
            assert!(found[0].evicting && found[0].kind == Kind::Stall);
            assert_eq!((found[0].task.as_deref(), found[0].pid), (Some("UVM GPU1 BH"), Some(900)));
        }
        let other = "rcu: INFO: rcu_preempt self-detected stall on CPU\nCall Trace:\n <TASK>\n xfs_x+0x1/0x2 [xfs]\n </TASK>";
        assert_eq!(read(other), [], "another driver's stall is not ours");
    }

    #[test]
    fn a_block_that_the_log_never_ends_is_told_after_two_seconds() {
        let mut troubles = Troubles::default();
        for line in BAD_PAGE.lines().take_while(|l| !l.contains("</TASK>")) {
            assert_eq!(troubles.line(5, line), None);
        }
        assert_eq!(troubles.flush(OPEN_NS), None);
        assert!(troubles.flush(OPEN_NS + 6).is_some());
        assert_eq!(troubles.flush(OPEN_NS * 9), None, "once");
    }

    proptest! {
        #[test]
        fn any_text_is_read(lines in proptest::collection::vec("\\PC{0,60}", 0..20)) {
            let mut troubles = Troubles::default();
            let heads = ["BUG: Bad page state in process ", "BUG: soft lockup - CPU#1 stuck for 2s! [", "CPU: 1 PID: ", " x+0x [nvidia_uvm]"];
            for (text, i) in lines.iter().zip(0_usize..) {
                let _ = troubles.line(7, &format!("{}{text}", heads[i % heads.len()]));
                let _ = troubles.line(7, text);
            }
            let _ = troubles.end();
        }
    }
}
