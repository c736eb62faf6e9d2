//! Fusion rules, and the small language of their patterns:
//!
//! ```text
//! value = op(operands); ...  [where value is op, ...]
//! ```
//!
//! A pattern matches ops of a body with exactly this flow of values, provided that nothing outside the
//! pattern reads a value the pattern reads itself. `where` names the op that must have made a value the
//! pattern only reads (`is`) or must not have (`is not`), a value of the pattern that is kept for others
//! although the pattern reads it (`is kept`), the only op that reads what the pattern writes (`feeds`), or a
//! value of the pattern that the body passes on (`is handed on`). Every op of a body must be matched exactly
//! once: an op that two rules match, or none, is a build error. The order of rules is irrelevant.

use super::lower::Fusion;
use super::{PassError, pass_error};
use crate::graph::Op;

/// A rule with its parsed pattern.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The rule as written.
    pub fusion: &'static Fusion,
    /// Terms of the pattern, operands before their users.
    pub terms: Vec<Term>,
    /// `(value, op)`: the op that must have made a value the pattern only reads.
    pub origins: Vec<(String, String)>,
    /// `(value, op)`: the op that must not have made it.
    pub others: Vec<(String, String)>,
    /// `(value, op)`: the only op outside the pattern that reads a value the pattern writes.
    pub readers: Vec<(String, String)>,
    /// Values of the pattern that the body passes on.
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

/// Parses the patterns.
///
/// # Errors
/// Names the rule and the mistake: bad syntax, an unknown op, a value written twice.
pub fn parse(fusions: impl IntoIterator<Item = &'static Fusion>) -> Result<Vec<Rule>, PassError> {
    let parsed = |fusion: &'static Fusion| {
        rule(fusion).map_err(|why| pass_error!("fusion rule `{}`: {why}", fusion.name))
    };
    fusions.into_iter().map(parsed).collect()
}

fn rule(fusion: &'static Fusion) -> Result<Rule, String> {
    let (pattern, clauses) = fusion.pattern.split_once(" where ").unwrap_or((fusion.pattern, ""));
    let clauses = clauses.split(',').map(str::trim).filter(|clause| !clause.is_empty());
    let (kept, origins): (Vec<&str>, Vec<&str>) = clauses.partition(|clause| clause.ends_with(" is kept"));
    let kept: Vec<String> = kept.iter().map(|it| it.trim_end_matches(" is kept").to_owned()).collect();
    let (handed_on, origins): (Vec<&str>, Vec<&str>) =
        origins.into_iter().partition(|clause| clause.ends_with(" is handed on"));
    let handed_on: Vec<String> =
        handed_on.iter().map(|it| it.trim_end_matches(" is handed on").to_owned()).collect();
    let (readers, origins): (Vec<&str>, Vec<&str>) =
        origins.into_iter().partition(|clause| clause.contains(" feeds "));
    let (others, origins): (Vec<&str>, Vec<&str>) =
        origins.into_iter().partition(|clause| clause.contains(" is not "));
    let origins = origins.into_iter().map(|it| clause(it, " is ")).collect::<Result<_, _>>()?;
    let others = others.into_iter().map(|it| clause(it, " is not ")).collect::<Result<_, _>>()?;
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
    Ok(Rule { fusion, terms, origins, others, readers, handed_on, kept })
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
    if Op::names().any(|known| known == name) {
        Ok(name.to_owned())
    } else {
        Err(format!("no op is called `{name}`; ops are {}", Op::names().collect::<Vec<_>>().join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::lower::Lowering;
    use super::*;

    /// A rule that consists of its pattern only.
    fn read(pattern: &'static str) -> Result<Vec<Rule>, PassError> {
        let lower = |_: &Lowering| Err(pass_error!("it is not lowered"));
        let fusion = Fusion { name: "tried", pattern, matrices: &[], buffers: &[], lower };
        parse([&*Box::leak(Box::new(fusion))])
    }

    #[test]
    fn a_rule_has_terms_and_origins() {
        let rules = read("n = rms-norm(x); y = linear(n) where x is add, x is not gate").unwrap();
        assert_eq!(rules[0].terms[1].operands, ["n"]);
        assert_eq!(rules[0].origins, [("x".to_owned(), "add".to_owned())]);
        assert_eq!(rules[0].others, [("x".to_owned(), "gate".to_owned())]);
    }

    #[test]
    fn mistakes_name_their_rule() {
        let error = |pattern| read(pattern).unwrap_err().0;
        assert!(error("x = liner(y)").starts_with("fusion rule `tried`: no op is called `liner`"));
        assert!(error("x = linear(y); x = add(x, y)").contains("`x` is written twice"));
        assert!(error("x = linear(y); y = add(x, x)").contains("`y` is read before it is written"));
        assert!(error("x = linear(y) where z is kept").contains("`z` is kept"));
        assert!(error("x = linear(y) where y is handed on").contains("`y` is handed on"));
        assert!(error("x = linear y").contains("expected `op(operands)`"));
    }
}
