//! The few places where `unsafe` may stand.
use std::path::Path;

use super::{Finding, source::Source};

/// Each with its reason.
const ALLOWED: &[(&str, &str)] = &[
    ("glake-user/src/sys/", "the room of system calls and foreign memory"),
    ("glake-ebpf/src/", "every access to kernel memory is unsafe there"),
    ("glake-common/src/lib.rs", "the promise that shared records are plain bytes"),
    ("glake-user/preload/src/", "a C ABI"),
    ("glake-user/python/src/", "a C ABI"),
    ("tests/", "test programs that call the kernel directly"),
];

/// `unsafe`, and leave to use it, outside those places.
pub fn findings(source: &Source) -> Vec<Finding> {
    if ALLOWED.iter().any(|(place, _)| is_in(&source.path, place)) {
        return Vec::new();
    }
    let code = source.tokens.iter().filter(|t| t.text == "unsafe" || t.text == "unsafe_code");
    let finding = |line: usize| Finding {
        file: source.path.clone(),
        line,
        what: "unsafe has no place here (the places are in xtask/src/check/unsafe_files.rs)".into(),
    };
    code.map(|t| finding(t.line)).collect()
}

/// A place is a file, or a folder if it ends with a slash.
fn is_in(path: &Path, place: &str) -> bool {
    if place.ends_with('/') { path.starts_with(place) } else { path == Path::new(place) }
}

#[cfg(test)]
mod tests {
    use super::{super::source::tests::file, *};

    const CODE: &str = "fn f() {\n    unsafe { g() }\n}\n";

    #[test]
    fn unsafe_is_found_where_it_has_no_place() {
        let found = findings(&file("glake-user/src/host/pci.rs", CODE));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 2);
        assert!(findings(&file("glake-user/src/sys/mmap.rs", CODE)).is_empty());
    }

    #[test]
    fn leave_to_use_it_counts_and_a_word_in_a_comment_does_not() {
        assert_eq!(findings(&file("a.rs", "#![allow(unsafe_code)]\n")).len(), 1);
        assert_eq!(findings(&file("a.rs", "// unsafe\nconst S: &str = \"unsafe\";\n")).len(), 0);
    }

    #[test]
    fn a_file_whose_name_begins_alike_is_not_the_place() {
        assert_eq!(findings(&file("glake-common/src/lib.rs.rs", CODE)).len(), 1);
        assert_eq!(findings(&file("glake-user/src/system.rs", CODE)).len(), 1);
    }
}
