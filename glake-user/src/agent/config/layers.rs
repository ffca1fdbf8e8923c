//! The layers of the configuration and where each value came from.

use super::{
    Config,
    keys::{KEYS, Key, Kind},
    nearest,
};
use crate::error::{Error, Kind as ErrorKind, Result};
use std::{fmt, path::PathBuf};
use toml::de::{DeTable, DeValue};

/// Read when no `--config` names another file; it may be missing.
pub const DEFAULT_FILE: &str = "/etc/glake/glake.toml";

/// What to read.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The file of `--config`; it must exist.
    pub file: Option<PathBuf>,
    /// The file to read without one; it may be missing.
    pub default_file: Option<PathBuf>,
    /// The environment's `GLAKE_*`.
    pub variables: Vec<(String, String)>,
    /// Flags, by key name.
    pub flags: Vec<(&'static str, String)>,
}

impl Request {
    /// With this process's environment and the usual default file.
    pub fn of_process(file: Option<PathBuf>, flags: Vec<(&'static str, String)>) -> Request {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| name.starts_with("GLAKE_"))?;
            Some((name, value.to_string_lossy().into_owned()))
        });
        Request { file, default_file: Some(DEFAULT_FILE.into()), variables: variables.collect(), flags }
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A file, with the line.
    File(PathBuf, usize),
    /// The environment.
    Variable(String),
    /// The command line.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::Variable(name) => write!(f, "environment {name}"),
            Origin::Flag => f.write_str("flag"),
        }
    }
}

/// A configuration and where each of its values came from.
#[derive(Debug, Clone)]
pub struct Layered {
    /// The values.
    pub config: Config,
    /// In the order of [`KEYS`].
    pub origins: Vec<Origin>,
    /// The file that was read.
    pub file: Option<PathBuf>,
}

impl Layered {
    /// Reads all layers.
    ///
    /// # Errors
    /// The first thing that is wrong, with its file and line, variable or flag.
    pub fn read(request: &Request) -> Result<Layered> {
        let mut layered =
            Layered { config: Config::default(), origins: vec![Origin::Default; KEYS.len()], file: None };
        let file = match (&request.file, &request.default_file) {
            (Some(file), _) => Some(file),
            (None, Some(default)) if default.exists() => Some(default),
            _ => None,
        };
        if let Some(path) = file {
            let text = std::fs::read_to_string(path).map_err(|e| {
                Error::new(ErrorKind::Misuse, format!("reading the configuration {}", path.display()))
                    .because(e)
                    .remedy("--config names a text file that this user may read")
            })?;
            layered.take_text(&text, path)?;
            layered.file = Some(path.clone());
        }
        for (name, value) in &request.variables {
            layered.take_variable(name, value)?;
        }
        for (name, value) in &request.flags {
            let key = KEYS.iter().position(|key| key.name == *name);
            let at =
                key.ok_or_else(|| Error::new(ErrorKind::Misuse, format!("flag for the unknown key {name}")))?;
            layered.set(at, value, Origin::Flag)?;
        }
        Ok(layered)
    }

    /// Reads the text of a file. Total: any text gives a configuration or an error.
    ///
    /// # Errors
    /// As [`Layered::read`].
    pub fn take_text(&mut self, text: &str, path: &std::path::Path) -> Result<()> {
        let line_of =
            |offset: usize| text.as_bytes().iter().take(offset).filter(|b| **b == b'\n').count() + 1;
        let wrong = |offset, what: String| {
            Error::new(ErrorKind::Misuse, format!("{}:{}: {what}", path.display(), line_of(offset)))
        };
        let table = DeTable::parse(text).map_err(|e| {
            wrong(e.span().map_or(0, |span| span.start), format!("this is not TOML: {}", e.message()))
        })?;
        let mut values = Vec::new();
        flatten("", table.get_ref(), &mut values);
        for (name, offset, value) in values {
            let at = KEYS.iter().position(|key| key.name == name).ok_or_else(|| {
                let error = wrong(offset, format!("unknown key {name}"));
                match nearest(&name, KEYS.iter().map(|key| key.name)) {
                    Some(near) => error.remedy(format!("did you mean {near}?")),
                    None => error.remedy("`glake config show` lists all keys"),
                }
            })?;
            let value = value_text(&KEYS[at], value).map_err(|what| wrong(offset, what))?;
            self.set(at, &value, Origin::File(path.to_owned(), line_of(offset)))?;
        }
        Ok(())
    }

    /// Other parts of GLake have variables of their own (the allocator in a training job's shell), so a stranger is let
    /// pass; a slip of one of ours is not.
    fn take_variable(&mut self, name: &str, value: &str) -> Result<()> {
        if let Some(at) = KEYS.iter().position(|key| key.variable() == name) {
            return self.set(at, value, Origin::Variable(name.to_owned()));
        }
        // The prefix that all share would make any two short names look alike.
        let bare = |name: &str| name.strip_prefix("GLAKE_").unwrap_or(name).to_owned();
        let known: Vec<String> = KEYS.iter().map(|key| bare(&key.variable())).collect();
        match nearest(&bare(name), known.iter().map(String::as_str)) {
            Some(near) => Err(Error::new(ErrorKind::Misuse, format!("unknown variable {name}"))
                .remedy(format!("did you mean GLAKE_{near}?"))),
            None => Ok(()),
        }
    }

    fn set(&mut self, at: usize, value: &str, origin: Origin) -> Result<()> {
        let key = &KEYS[at];
        (key.set)(&mut self.config, value).map_err(|why| {
            Error::new(ErrorKind::Misuse, format!("{} = {value:?} ({origin}): {why}", key.name))
        })?;
        self.origins[at] = origin;
        Ok(())
    }

    /// The keys that differ and cannot change while the agent runs.
    pub fn needs_restart(&self, newer: &Config) -> Vec<&'static str> {
        let differ = |key: &&Key| (key.get)(&self.config) != (key.get)(newer);
        KEYS.iter().filter(|key| key.restart).filter(differ).map(|key| key.name).collect()
    }

    /// Every key with its value and where it came from, as a file that could be read again.
    pub fn show(&self) -> String {
        let values: Vec<(String, &Origin)> = KEYS
            .iter()
            .zip(&self.origins)
            .map(|(key, origin)| (format!("{} = {}", key.name, key.toml(&self.config)), origin))
            .collect();
        let wide = values.iter().map(|(text, _)| text.chars().count()).max().unwrap_or(0);
        values.iter().map(|(text, origin)| format!("{text:<wide$}  # {origin}\n")).collect()
    }
}

/// Every leaf with its dotted name and the offset of its key.
fn flatten<'a, 'i>(prefix: &str, table: &'a DeTable<'i>, out: &mut Vec<(String, usize, &'a DeValue<'i>)>) {
    for (key, value) in table.iter() {
        let name =
            if prefix.is_empty() { key.get_ref().to_string() } else { format!("{prefix}.{}", key.get_ref()) };
        match value.get_ref() {
            // A table is a section unless it stands where a value is wanted.
            DeValue::Table(inner) => flatten(&name, inner, out),
            leaf => out.push((name, key.span().start, leaf)),
        }
    }
}

fn value_text(key: &Key, value: &DeValue<'_>) -> std::result::Result<String, String> {
    match (key.kind, value) {
        (Kind::Text, DeValue::String(text)) => Ok(text.to_string()),
        (Kind::Number, DeValue::Integer(number)) => Ok(number.as_str().to_owned()),
        (Kind::Number, DeValue::Float(number)) => Ok(number.as_str().to_owned()),
        (Kind::Flag, DeValue::Boolean(flag)) => Ok(flag.to_string()),
        (Kind::List, DeValue::Array(items)) => {
            let names = items.iter().map(|item| match item.get_ref() {
                DeValue::String(text) if !text.contains(',') => Ok(text.to_string()),
                _ => Err(format!("{} is an array of names in quotes", key.name)),
            });
            Ok(names.collect::<std::result::Result<Vec<_>, _>>()?.join(","))
        }
        (Kind::Text, _) => Err(format!("{} is text in quotes", key.name)),
        (Kind::Number, _) => Err(format!("{} is a number", key.name)),
        (Kind::Flag, _) => Err(format!("{} is true or false, without quotes", key.name)),
        (Kind::List, _) => Err(format!("{} is an array of names in quotes", key.name)),
    }
}
