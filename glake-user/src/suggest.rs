//! The nearest known word to a misspelt one.

/// The known word that differs least, if it is near enough to be meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.into_iter().map(|k| (distance(word, k), k)).min_by_key(|(d, _)| *d);
    near.filter(|(d, k)| *d <= 1 + k.chars().count() / 4).map(|(_, k)| k)
}

/// Optimal string alignment: insert, delete, replace, swap two neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_word_and_a_stranger_finds_none() {
        let known = ["interval", "http.listen", "http.web_config", "profile"];
        assert_eq!(nearest("intervall", known), Some("interval"));
        assert_eq!(nearest("http.lisetn", known), Some("http.listen"));
        assert_eq!(nearest("prfile", known), Some("profile"));
        assert_eq!(nearest("color", known), None);
    }
}
