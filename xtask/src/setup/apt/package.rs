//! What apt prints about packages.

/// One version of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// `6.12.95-1~bpo12+1`.
    pub version: String,
    /// Names it depends on, without version bounds; of alternatives the first.
    pub depends: Vec<String>,
}

impl Package {
    /// The first record of `apt-cache show`.
    pub(super) fn first_in(text: &str) -> Option<Self> {
        let record = text.split("\n\n").next()?;
        let field = |key: &str| record.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(": "));
        let depends = field("Depends").unwrap_or_default();
        let name =
            |one: &str| one.split('|').next().and_then(|n| n.split_whitespace().next()).map(str::to_owned);
        Some(Self {
            version: field("Version")?.to_owned(),
            depends: depends.split(',').filter_map(name).collect(),
        })
    }
}

/// The versions in what `apt-cache madison` prints, in apt's own order, newest first (a text sort would put 7.2.9
/// over 7.2.12).
pub(super) fn versions(table: &str) -> impl Iterator<Item = &str> {
    table.lines().filter_map(|l| l.split('|').nth(1)).map(str::trim)
}

/// Whether a Debian version is one of upstream's `release`: `1.95.0+dfsg1-2~bpo13+1` of 1.95.0.
pub(super) fn is_release(version: &str, release: &str) -> bool {
    let upstream = version.split_once(':').map_or(version, |(_epoch, rest)| rest);
    upstream
        .strip_prefix(release)
        .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_lose_their_bounds_and_all_but_the_first_alternative() {
        let text = "Package: linux-image-amd64\nVersion: 7.3.4-1~bpo13+1\nDepends: linux-base-amd64 (= 7.3.4-1~bpo13+1), dracut | initramfs-tools (>= 0.120)\n\nPackage: other\nVersion: 1\n";
        let got = Package::first_in(text).unwrap();
        assert_eq!(got.version, "7.3.4-1~bpo13+1");
        assert_eq!(got.depends, ["linux-base-amd64", "dracut"]);
        assert_eq!(Package::first_in(""), None);
    }

    #[test]
    fn versions_keep_apts_order() {
        let table = "  rust-src | 1.97.1+dfsg1-1 | s:/ trixie/main amd64 Packages\n  \
                     rust-src | 1.95.0+dfsg1-2 | s:/ trixie/main amd64 Packages\n";
        assert_eq!(versions(table).collect::<Vec<_>>(), ["1.97.1+dfsg1-1", "1.95.0+dfsg1-2"]);
    }

    #[test]
    fn a_release_is_not_taken_for_a_longer_one() {
        assert!(is_release("1.95.0+dfsg1-2~bpo13+1", "1.95.0"));
        assert!(is_release("2:1.95.0-1", "1.95.0"));
        assert!(!is_release("1.95.01-1", "1.95.0") && !is_release("1.95.0.1-1", "1.95.0"));
        assert!(!is_release("1.97.1-1", "1.95.0"));
    }
}
