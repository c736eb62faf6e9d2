//! Fusion rules: the small language they are written in.

use super::{PassError, pass_error};
use crate::graph::Op;

/// A phase kind and the pattern of ops that becomes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The phase kind it makes.
    pub kind: String,
    /// The pattern, operands before their users.
    pub terms: Vec<Term>,
    /// `(value, op)`: the op that must have made a value the pattern only reads.
    pub origins: Vec<(String, String)>,
    /// `(value, op)`: the only op that reads a value the pattern writes, outside it.
    pub readers: Vec<(String, String)>,
    /// Values of the pattern that the body hands on.
    pub handed_on: Vec<String>,
    /// Values that leave the phase, or get a buffer, although the pattern reads them itself.
    pub kept: Vec<String>,
}

/// `value = op(operands)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// The value written.
    pub value: String,
    /// Name of the op.
    pub op: String,
    /// Values read, in the op's order.
    pub operands: Vec<String>,
}

/// Parses a table of rules; see `templates/rust/cpu.rules` for the language.
///
/// # Errors
/// With the line and what is wrong there: bad syntax, an unknown op, a value written twice.
pub fn parse(table: &str) -> Result<Vec<Rule>, PassError> {
    let lines = table.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
    let rules = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    rules
        .map(|(number, line)| rule(line).map_err(|why| pass_error!("fusion rules, line {number}: {why}")))
        .collect()
}

fn rule(line: &str) -> Result<Rule, String> {
    let (kind, rest) = line.split_once(':').ok_or("expected `kind: pattern`")?;
    let (pattern, clauses) = rest.split_once(" where ").unwrap_or((rest, ""));
    let clauses = clauses.split(',').map(str::trim).filter(|clause| !clause.is_empty());
    let (kept, origins): (Vec<&str>, Vec<&str>) = clauses.partition(|clause| clause.ends_with(" is kept"));
    let kept: Vec<String> = kept.iter().map(|it| it.trim_end_matches(" is kept").to_owned()).collect();
    let (handed_on, origins): (Vec<&str>, Vec<&str>) =
        origins.into_iter().partition(|clause| clause.ends_with(" is handed on"));
    let handed_on: Vec<String> =
        handed_on.iter().map(|it| it.trim_end_matches(" is handed on").to_owned()).collect();
    let (readers, origins): (Vec<&str>, Vec<&str>) =
        origins.into_iter().partition(|clause| clause.contains(" feeds "));
    let origins = origins.into_iter().map(|it| clause(it, " is ")).collect::<Result<_, _>>()?;
    let readers = readers.into_iter().map(|it| clause(it, " feeds ")).collect::<Result<_, _>>()?;
    let terms: Vec<Term> = pattern.split(';').map(term).collect::<Result<_, _>>()?;
    for (i, term) in terms.iter().enumerate() {
        if terms[..i].iter().any(|earlier| earlier.value == term.value) {
            return Err(format!("`{}` is written twice", term.value));
        }
        if let Some(late) = terms[i..].iter().find(|later| term.operands.contains(&later.value)) {
            return Err(format!("`{}` is read before it is written", late.value));
        }
    }
    if let Some(unknown) = handed_on.iter().find(|it| terms.iter().all(|term| term.value != **it)) {
        return Err(format!("`{unknown}` is handed on, and no op of the pattern writes it"));
    }
    if let Some(unknown) = kept.iter().find(|kept| terms.iter().all(|term| term.value != **kept)) {
        return Err(format!("`{unknown}` is kept, and no op of the pattern writes it"));
    }
    Ok(Rule { kind: kind.trim().to_owned(), terms, origins, readers, handed_on, kept })
}

fn term(text: &str) -> Result<Term, String> {
    let (value, call) =
        text.split_once('=').ok_or_else(|| format!("expected `value = op(…)`, found `{text}`"))?;
    let (op, operands) = call
        .trim()
        .strip_suffix(')')
        .and_then(|call| call.split_once('('))
        .ok_or_else(|| format!("expected `op(operands)`, found `{}`", call.trim()))?;
    let operands = operands.split(',').map(|name| name.trim().to_owned());
    Ok(Term {
        value: value.trim().to_owned(),
        op: known_op(op)?,
        operands: operands.filter(|name| !name.is_empty()).collect(),
    })
}

fn clause(text: &str, verb: &str) -> Result<(String, String), String> {
    let (value, op) =
        text.split_once(verb).ok_or_else(|| format!("expected `value is op`, found `{text}`"))?;
    Ok((value.trim().to_owned(), known_op(op)?))
}

fn known_op(name: &str) -> Result<String, String> {
    let name = name.trim();
    let known = Op::NAMES.contains(&name);
    if known {
        Ok(name.to_owned())
    } else {
        Err(format!("no op is called `{name}`; ops are {}", Op::NAMES.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_terms_and_origins() {
        let rules = parse("# note\n\nproject: n = rms-norm(x); y = linear(n) where x is add\n").unwrap();
        assert_eq!(rules.len(), 1);
        assert_eq!(rules[0].kind, "project");
        assert_eq!(rules[0].terms[1].operands, ["n"]);
        assert_eq!(rules[0].origins, [("x".to_owned(), "add".to_owned())]);
    }

    #[test]
    fn mistakes_name_their_line() {
        let error = |table| parse(table).unwrap_err().0;
        assert!(
            error("a: x = linear(y)\nb: x = liner(y)")
                .starts_with("fusion rules, line 2: no op is called `liner`")
        );
        assert!(error("a: x = linear(y); x = add(x, y)").contains("`x` is written twice"));
        assert!(error("a: x = linear(y); y = add(x, x)").contains("`y` is read before it is written"));
        assert!(error("a: x = linear(y) where z is kept").contains("`z` is kept"));
        assert!(error("a: x = linear(y) where y is handed on").contains("`y` is handed on"));
        assert!(error("a: x = linear y").contains("expected `op(operands)`"));
    }
}
