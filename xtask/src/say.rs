//! What xtask tells the person in front of it: on stderr, one line per step, so that stdout stays for results.
use std::time::Duration;

/// One step that is about to be done.
pub fn step(what: &str, detail: &str) {
    eprintln!("xtask {what}: {detail}");
}

/// Said before anything outside the tree and its cache is changed.
pub fn outside(what: &str) {
    eprintln!("xtask changes something outside this tree: {what}");
}

/// An error with its causes, outermost first.
pub fn error(e: &anyhow::Error) {
    eprintln!("xtask failed: {e:#}");
}

/// `75 s` up to two minutes, `4 min 20 s` from there on.
pub fn time(t: Duration) -> String {
    match t.as_secs() {
        s @ 0..120 => format!("{s} s"),
        s => format!("{} min {} s", s / 60, s % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_people_say_them() {
        assert_eq!(time(Duration::from_millis(900)), "0 s");
        assert_eq!(time(Duration::from_secs(119)), "119 s");
        assert_eq!(time(Duration::from_secs(260)), "4 min 20 s");
    }
}
