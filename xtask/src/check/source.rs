//! The tracked files, and Rust files as tokens: comments and strings are no code.
use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::{cmd, tree::Tree};

/// Tracked files, and new ones that git does not ignore, that are text and that `wanted` picks.
pub fn tracked(tree: &Tree, wanted: impl Fn(&Path) -> bool) -> Result<Vec<(PathBuf, String)>> {
    let mut list = Command::new("git");
    list.current_dir(&tree.root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let names = cmd::output(&mut list)?;
    let paths = names.split('\0').filter(|n| !n.is_empty()).map(PathBuf::from).filter(|p| wanted(p));
    // Deleted files are listed until that is committed; binary files are no text.
    Ok(paths.filter_map(|p| Some((p.clone(), std::fs::read_to_string(tree.root.join(&p)).ok()?))).collect())
}

/// One token of a Rust file.
#[derive(Clone, Debug)]
pub struct Token {
    /// As written; of a literal only a quote.
    pub text: String,
    /// From 1.
    pub line: usize,
    /// Whether it lies in a `#[cfg(test)] mod`.
    pub test: bool,
}

/// A Rust file.
pub struct Source {
    /// From the root of the tree.
    pub path: PathBuf,
    /// All of it, groups flattened with their delimiters.
    pub tokens: Vec<Token>,
}

impl Source {
    /// Reads a file's text.
    pub fn parse(path: PathBuf, text: String) -> Result<Self> {
        let stream: TokenStream = text
            .parse()
            .map_err(|e| anyhow!("{e}"))
            .with_context(|| format!("{}: no Rust", path.display()))?;
        let test = path.components().any(|c| c.as_os_str() == "tests") || path.ends_with("tests.rs");
        let mut tokens = Vec::new();
        flatten(stream, test, &mut tokens);
        Ok(Self { path, tokens })
    }
}

fn flatten(stream: TokenStream, test: bool, out: &mut Vec<Token>) {
    // `#[cfg(test)]` holds for what follows it up to the end of that item.
    let mut marked = false;
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                let body = group.delimiter() == Delimiter::Brace;
                let inside = test || (marked && body);
                marked = (marked && !body) || group.stream().to_string() == "cfg (test)";
                out.push(Token { text: open.into(), line, test: inside });
                flatten(group.stream(), inside, out);
                out.push(Token { text: close.into(), line: group.span_close().start().line, test: inside });
            }
            TokenTree::Literal(_) => out.push(Token { text: "\"".into(), line, test }),
            other => {
                let text = other.to_string();
                marked &= text != ";";
                out.push(Token { text, line, test: test || marked });
            }
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A file for the other checks' tests.
    pub fn file(path: &str, text: &str) -> Source {
        Source::parse(path.into(), text.to_owned()).unwrap()
    }

    #[test]
    fn comments_and_strings_are_no_code() {
        let source =
            file("a.rs", "// unsafe\nfn f() { let _ = (\"unsafe\", r#\"unsafe\"#); /* unsafe */ }\n");
        assert!(!source.tokens.iter().any(|t| t.text == "unsafe"));
    }

    #[test]
    fn a_token_knows_its_line_and_whether_it_is_a_test() {
        let source = file("a.rs", "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n");
        let find = |name: &str| source.tokens.iter().find(|t| t.text == name).unwrap();
        assert_eq!((find("a").line, find("a").test), (1, false));
        assert_eq!((find("b").line, find("b").test), (4, true));
        assert_eq!((find("c").line, find("c").test), (6, false));
    }
}
