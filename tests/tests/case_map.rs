//! The map of cases (`tests/data/cases/README.md`) leads to tests that exist, and misses no case.

use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Words in back quotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_test_that_the_map_names_exists() {
    let map = read("tests/data/cases/README.md");
    let rows: Vec<&str> = map.lines().filter(|l| l.starts_with("| ") && l.contains(".rs`")).collect();
    assert!(rows.len() >= 17, "{}", rows.len());
    for row in rows {
        let last = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let names = quoted(last);
        let text = read(names[0]);
        for function in &names[1..] {
            assert!(text.contains(&format!("fn {function}(")), "{} has no {function}", names[0]);
        }
    }
}

#[test]
fn every_case_has_its_place() {
    let map = read("tests/data/cases/README.md");
    let tables = ["diagnose/xid/case_tests.rs", "agent/findings_case_tests.rs", "events/ebpf/case_tests.rs"];
    let tables: String = tables.iter().map(|t| read(&format!("glake-user/src/{t}"))).collect();
    for (section, last) in [('E', 19), ('G', 11), ('I', 15), ('J', 15)] {
        for number in (1..=last).step_by(2) {
            let case = format!("{section}{number:02}");
            let in_a_table = tables.contains(&format!("number: \"{case}"));
            let alone = map.lines().any(|l| l.starts_with("| ") && l.contains(&case));
            assert!(in_a_table || alone, "{case}");
        }
    }
}
