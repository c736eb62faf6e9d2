//! Names of tensors with indices in them.

/// The indices a name has where its pattern has placeholders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Indices {
    /// In the place of `{layer}`.
    pub(crate) layer: Option<usize>,
    /// In the place of `{expert}`.
    pub(crate) expert: Option<usize>,
}

/// The indices by which `name` is an instance of `pattern`; `None` where it is not. `{layer}` and `{expert}`
/// stand for a number without leading zeros, `*` at the end for anything.
pub(crate) fn find(pattern: &str, name: &str) -> Option<Indices> {
    let mut indices = Indices::default();
    let (mut pattern, mut name) = (pattern, name);
    while let Some(at) = pattern.find(['{', '*']) {
        name = name.strip_prefix(&pattern[..at])?;
        pattern = &pattern[at..];
        if pattern == "*" {
            return Some(indices);
        }
        let digits = name.len() - name.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = name.split_at(digits);
        if number.len() > 1 && number.starts_with('0') {
            return None;
        }
        let number = Some(number.parse().ok()?);
        let place = match pattern.split_once('}')? {
            ("{layer", after) => (&mut indices.layer, after),
            ("{expert", after) => (&mut indices.expert, after),
            _ => return None,
        };
        (*place.0, pattern, name) = (number, place.1, rest);
    }
    (pattern == name).then_some(indices)
}

/// Whether a tensor called `name` is one that `pattern` stands for: as in a spec, `{layer}` and `{expert}`
/// are any number, and a `*` at its end is anything.
pub fn is_instance(pattern: &str, name: &str) -> bool {
    find(pattern, name).is_some()
}

#[cfg(test)]
mod tests {
    use super::{Indices, find};

    #[test]
    fn names_are_found_by_their_patterns() {
        let at = |layer, expert| Some(Indices { layer, expert });
        assert_eq!(find("norm.weight", "norm.weight"), at(None, None));
        assert_eq!(find("norm.weight", "norm.weights"), None);
        assert_eq!(find("layers.{layer}.q", "layers.12.q"), at(Some(12), None));
        let pattern = "layers.{layer}.experts.{expert}.up";
        assert_eq!(find(pattern, "layers.3.experts.255.up"), at(Some(3), Some(255)));
        for wrong in
            ["layers.03.experts.1.up", "layers..experts.1.up", "layers.3.experts.1.upper", "layers.3"]
        {
            assert_eq!(find(pattern, wrong), None, "{wrong}");
        }
        assert_eq!(find("model.visual.*", "model.visual.blocks.0.norm"), at(None, None));
        assert_eq!(find("model.visual.*", "model.vision"), None);
    }
}
