//! Where a text repeats how it begins.

/// For every suffix of `ids`, the length of the longest prefix of `ids` that it begins with (the Z function:
/// Gusfield 1997, 1.4), in linear time. By convention, the whole has 0.
pub(crate) fn common_prefixes(ids: &[u32]) -> Vec<usize> {
    let mut lengths = vec![0; ids.len()];
    let (mut from, mut to) = (0, 0);
    for at in 1..ids.len() {
        // Within the match that reaches farthest, the result for the corresponding prefix applies again.
        let mut length = if at < to { lengths[at - from].min(to - at) } else { 0 };
        while at + length < ids.len() && ids[length] == ids[at + length] {
            length += 1;
        }
        if at + length > to {
            (from, to) = (at, at + length);
        }
        lengths[at] = length;
    }
    lengths
}
