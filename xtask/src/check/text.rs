//! What no tracked file may hold: paths of one machine, hosts of package registries, and unfinished work.
use std::path::PathBuf;

use super::Finding;

/// Pieces, joined to what is looked for, so that this file does not hold it itself.
const WORDS: &[(&[&str], &str)] = &[
    (&["/wo", "rk/"], "a path of one machine"),
    (&["/ro", "ot/."], "a path of one machine"),
    (&["deb.deb", "ian.org"], "a registry's host; take the mirror from the machine"),
    (&["security.deb", "ian.org"], "a registry's host; take the mirror from the machine"),
    (&["static.cra", "tes.io"], "a registry's host"),
    (&["index.cra", "tes.io"], "a registry's host"),
    (&["static.rust-", "lang.org"], "a registry's host"),
    (&["registry.npm", "js.org"], "a registry's host"),
    (&["files.python", "hosted.org"], "a registry's host"),
    (&["TO", "DO"], "unfinished work: file an issue"),
    (&["FIX", "ME"], "unfinished work: file an issue"),
    (&["todo", "!("], "unfinished work"),
    (&["unimpl", "emented!("], "unfinished work"),
];

/// Lines that hold one of the words.
pub fn findings(files: &[(PathBuf, String)]) -> Vec<Finding> {
    let words: Vec<(String, &str)> = WORDS.iter().map(|(pieces, why)| (pieces.concat(), *why)).collect();
    let mut found = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| !is_recorded(path)) {
        for (number, line) in text.lines().enumerate() {
            for (word, why) in words.iter().filter(|(word, _)| line.contains(word.as_str())) {
                let what = format!("{word:?} is {why}");
                found.push(Finding { file: path.clone(), line: number + 1, what });
            }
        }
    }
    found
}

/// Recorded input of other programs holds what it holds.
fn is_recorded(path: &std::path::Path) -> bool {
    path.starts_with("tests/data") || path.starts_with("tests/fuzz/corpus")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_found_with_its_line() {
        for (pieces, _) in WORDS {
            let text = format!("fine\nsee {}x\n", pieces.concat());
            let found = findings(&[("docs/a.md".into(), text)]);
            assert_eq!(found.len(), 1, "{pieces:?}");
            assert_eq!(found[0].line, 2);
        }
    }

    #[test]
    fn recorded_input_is_left_alone() {
        let text = format!("{}\n", WORDS[0].0.concat());
        assert!(findings(&[("tests/data/log.txt".into(), text)]).is_empty());
    }

    #[test]
    fn plain_text_passes() {
        assert!(findings(&[("README.md".into(), "crates.io and /usr/bin are fine\n".into())]).is_empty());
    }
}
