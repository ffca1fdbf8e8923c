//! Licences of all dependencies against `deny.toml`.
//!
//! cargo-deny reads the same file and checks more (advisories, duplicate versions); it is used where it is installed.
//! It is not built here: with its some 400 crates that would cost more than everything else that the check does.
use std::{fs, process::Command};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use spdx::{Expression, ParseMode};

use crate::{build, cmd, say, tree::Tree};

/// Checks every dependency of every workspace.
pub fn check(tree: &Tree) -> Result<()> {
    let deny: toml::Table = fs::read_to_string(tree.root.join("deny.toml")).context("deny.toml")?.parse()?;
    let allowed = allowed(&deny)?;
    let mut refused = Vec::new();
    for manifest in super::manifests(tree) {
        let mut metadata = build::cargo(tree, None);
        metadata.args(["metadata", "--format-version=1", "--manifest-path"]).arg(manifest);
        refused.extend(refusals(&serde_json::from_str(&cmd::output(&mut metadata)?)?, &allowed));
    }
    refused.sort();
    refused.dedup();
    if !refused.is_empty() {
        bail!("not allowed by deny.toml\n  {}", refused.join("\n  "));
    }
    cargo_deny(tree)
}

fn cargo_deny(tree: &Tree) -> Result<()> {
    if cmd::on_path("cargo-deny").is_none() {
        return Ok(());
    }
    say::step("check", "licences by cargo-deny too, since it is installed");
    cmd::run(
        Command::new("cargo-deny").current_dir(&tree.root).args(["check", "licenses", "bans", "sources"]),
    )
}

fn allowed(deny: &toml::Table) -> Result<Vec<String>> {
    let list = deny.get("licenses").and_then(|l| l.get("allow")).and_then(|a| a.as_array());
    let list = list.context("deny.toml has no licenses.allow")?;
    Ok(list.iter().filter_map(|l| l.as_str().map(str::to_owned)).collect())
}

/// Packages whose licence expression is not satisfied by `allowed`, each with the expression.
fn refusals(metadata: &Value, allowed: &[String]) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let bad = packages.filter_map(|package| {
        let licence = package["license"].as_str().unwrap_or("");
        let name = format!("{} {}", package["name"].as_str()?, package["version"].as_str()?);
        (!is_allowed(licence, allowed)).then(|| format!("{name}: {licence:?}"))
    });
    bad.collect()
}

fn is_allowed(licence: &str, allowed: &[String]) -> bool {
    // LAX takes the old `MIT/Apache-2.0` of manifests from before SPDX.
    let Ok(expression) = Expression::parse_mode(licence, ParseMode::LAX) else { return false };
    expression.evaluate(|requirement| allowed.iter().any(|a| *a == requirement.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(list: &[&str]) -> Vec<String> {
        list.iter().map(|&l| l.to_owned()).collect()
    }

    #[test]
    fn an_alternative_needs_one_allowed_side_and_a_conjunction_both() {
        let allowed = allow(&["MIT", "Apache-2.0"]);
        assert!(is_allowed("MIT OR GPL-3.0-only", &allowed));
        assert!(is_allowed("MIT/Apache-2.0", &allowed));
        assert!(!is_allowed("MIT AND GPL-3.0-only", &allowed));
        assert!(!is_allowed("GPL-3.0-only", &allowed));
    }

    #[test]
    fn an_exception_is_a_licence_of_its_own() {
        assert!(!is_allowed("Apache-2.0 WITH LLVM-exception", &allow(&["Apache-2.0"])));
        assert!(is_allowed("Apache-2.0 WITH LLVM-exception", &allow(&["Apache-2.0 WITH LLVM-exception"])));
    }

    #[test]
    fn a_package_with_no_licence_or_a_wrong_one_is_named() {
        let metadata = serde_json::json!({"packages": [
            {"name": "good", "version": "1.0.0", "license": "MIT"},
            {"name": "none", "version": "2.0.0", "license": null},
            {"name": "bad", "version": "3.0.0", "license": "SSPL-1.0"},
        ]});
        let found = refusals(&metadata, &allow(&["MIT"]));
        assert_eq!(found, ["none 2.0.0: \"\"", "bad 3.0.0: \"SSPL-1.0\""]);
    }

    #[test]
    fn a_file_without_the_list_is_an_error() {
        assert!(allowed(&"[licenses]\n".parse().unwrap()).is_err());
    }
}
