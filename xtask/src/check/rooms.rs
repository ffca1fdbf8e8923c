//! Data goes one way through the rooms of `glake-user/src`; an arrow back is refused.
//!
//! What counts is the path `crate::ROOM` in code, in a `use` or in place.
use std::path::Path;

use super::{
    Finding,
    source::{Source, Token},
};

/// What the two rooms at the top may look at.
const BELOW: &[&str] =
    &["copy", "place", "diagnose", "telemetry", "stitch", "gpu", "nvme", "events", "host", "sys", "standin"];

/// Each room and the rooms it may look at, besides those of [`FREE`].
const ROOMS: &[(&str, &[&str])] = &[
    ("sys", &[]),
    ("host", &["sys"]),
    ("events", &["sys"]),
    ("gpu", &["sys"]),
    ("nvme", &["sys"]),
    ("standin", &["gpu", "nvme", "events", "host", "sys"]),
    // Telemetry and copy see all that happens below; the allocator never sees storage.
    ("telemetry", &["gpu", "nvme", "events", "host", "sys"]),
    ("copy", &["gpu", "nvme", "events", "host", "sys"]),
    ("stitch", &["gpu", "events", "host", "sys"]),
    // These two decide, from topology, plain numbers and records of events.
    ("place", &["host"]),
    ("diagnose", &["events", "host"]),
    ("embed", &["copy", "stitch", "gpu", "events", "host", "sys", "standin"]),
    ("agent", BELOW),
    // And the agent, which it starts, and embed: a copy of its own is told like any program's.
    ("cli", BELOW),
];

/// Open to all; they look at each other only.
const FREE: &[&str] = &["error", "units", "clock", "pci", "suggest"];

/// Arrows that point back.
pub fn findings(source: &Source) -> Vec<Finding> {
    let Some(room) = room_of(&source.path) else { return Vec::new() };
    let used = used_rooms(&source.tokens);
    let wrong = used.into_iter().filter(|(name, token)| !allowed(room, name, token.test));
    let finding = |(name, token): (&str, &Token)| Finding {
        file: source.path.clone(),
        line: token.line,
        what: format!("{room} must not look at {name} (the arrows are in xtask/src/check/rooms.rs)"),
    };
    wrong.map(finding).collect()
}

/// The room a file belongs to; `None` for what is no room (`lib.rs`, `main.rs`) or lies elsewhere.
fn room_of(path: &Path) -> Option<&'static str> {
    let below = path.strip_prefix("glake-user/src").ok()?;
    let first = below.components().next()?.as_os_str().to_str()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    ROOMS.iter().map(|(room, _)| *room).chain(FREE.iter().copied()).find(|room| *room == name)
}

fn allowed(room: &str, name: &str, test: bool) -> bool {
    let known = FREE.contains(&name) || ROOMS.iter().any(|(r, _)| *r == name);
    let may = ROOMS.iter().find(|(r, _)| *r == room).map_or(&[][..], |(_, may)| may);
    let starts = room == "cli" && matches!(name, "agent" | "embed");
    !known
        || starts
        || name == room
        || FREE.contains(&name)
        || may.contains(&name)
        || (test && name == "standin")
}

/// What follows each `crate::`: one name, or the first name of each path of a group.
fn used_rooms(tokens: &[Token]) -> Vec<(&str, &Token)> {
    let mut found = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let path = tokens.get(i + 1..i + 3).is_some_and(|next| next.iter().all(|t| t.text == ":"));
        if token.text != "crate" || !path {
            continue;
        }
        match tokens.get(i + 3) {
            Some(open) if open.text == "{" => found.extend(first_names(&tokens[i + 4..])),
            Some(name) => found.push((name.text.as_str(), name)),
            None => {}
        }
    }
    found
}

/// The names in a group that follow its brace or a comma, up to its end.
fn first_names(group: &[Token]) -> Vec<(&str, &Token)> {
    let mut found = Vec::new();
    let (mut depth, mut first) = (0, true);
    for token in group {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" if depth == 0 => break,
            "}" => depth -= 1,
            "," if depth == 0 => first = true,
            name if depth == 0 && first => {
                found.push((name, token));
                first = false;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::source::tests::file, *};

    const NONE: [usize; 0] = [];

    fn lines(path: &str, text: &str) -> Vec<usize> {
        findings(&file(path, text)).into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn an_arrow_down_is_fine_and_one_back_is_named_with_its_line() {
        let down = "use crate::{\n    error::Error,\n    sys::mmap::{self, Map},\n};\n";
        assert_eq!(lines("glake-user/src/host/pci.rs", down), NONE);
        let back = "use crate::sys;\nuse crate::{\n    error::Error,\n    telemetry::{self, Rate},\n};\n";
        let found = findings(&file("glake-user/src/host/pci.rs", back));
        assert_eq!(found.len(), 1);
        let said = found[0].to_string();
        assert!(said.starts_with("glake-user/src/host/pci.rs:4: host must not look at telemetry"), "{said}");
    }

    #[test]
    fn a_path_in_the_middle_of_code_counts() {
        assert_eq!(lines("glake-user/src/stitch/heap.rs", "fn f() {\n    crate::nvme::open();\n}\n"), [2]);
    }

    #[test]
    fn rooms_of_one_tier_do_not_look_at_each_other() {
        assert_eq!(lines("glake-user/src/place/plan.rs", "use crate::diagnose::Finding;\n"), [1]);
        assert_eq!(lines("glake-user/src/events/ring.rs", "use crate::host;\n"), [1]);
        assert_eq!(lines("glake-user/src/agent/serve.rs", "use crate::cli;\n"), [1]);
        assert_eq!(lines("glake-user/src/cli/run.rs", "use crate::agent;\n"), NONE);
    }

    #[test]
    fn what_is_open_to_all_looks_at_no_room() {
        assert_eq!(lines("glake-user/src/units.rs", "use crate::error::Error;\nuse crate::host;\n"), [2]);
    }

    #[test]
    fn only_tests_may_use_stand_ins_below_the_top() {
        let text = "#[cfg(test)]\nmod tests {\n    use crate::standin::Gpu;\n}\n";
        assert_eq!(lines("glake-user/src/stitch/heap.rs", text), NONE);
        assert_eq!(lines("glake-user/src/stitch/heap.rs", "use crate::standin::Gpu;\n"), [1]);
    }

    #[test]
    fn other_crates_and_comments_have_no_arrows() {
        assert_eq!(lines("xtask/src/main.rs", "use crate::cli;\n"), NONE);
        assert_eq!(
            lines("glake-user/src/sys/mmap.rs", "//! See crate::cli and [`crate::agent`].\n// crate::cli\n"),
            NONE
        );
    }

    #[test]
    fn every_room_in_the_tree_is_in_the_table() {
        let src = concat!(env!("CARGO_MANIFEST_DIR"), "/../glake-user/src");
        for entry in std::fs::read_dir(src).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let known = room_of(&Path::new("glake-user/src").join(&name)).is_some();
            assert!(known || ["lib.rs", "main.rs"].contains(&name.as_str()), "{name} has no line in ROOMS");
        }
    }
}
