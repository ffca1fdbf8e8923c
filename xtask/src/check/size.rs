//! A file holds one idea: its code, tests left out, ends before line 500.
use super::{Finding, source::Source};

const MOST: usize = 500;

/// The file, if it is too long.
pub fn findings(source: &Source) -> Vec<Finding> {
    let code = source.tokens.iter().filter(|t| !t.test).map(|t| t.line).max().unwrap_or(0);
    if code <= MOST {
        return Vec::new();
    }
    let what = format!("code goes on for {code} lines; {MOST} are the most that one file may have");
    vec![Finding { file: source.path.clone(), line: MOST, what }]
}

#[cfg(test)]
mod tests {
    use super::{super::source::tests::file, *};

    #[test]
    fn a_long_file_is_found_and_its_tests_do_not_count() {
        let long = "fn f() {}\n".repeat(MOST + 1);
        assert_eq!(findings(&file("a.rs", &long)).len(), 1);
        let tested = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{long}}}\n");
        assert_eq!(findings(&file("a.rs", &tested)).len(), 0);
    }
}
