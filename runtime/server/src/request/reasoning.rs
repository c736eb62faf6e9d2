//! Reasoning: flags, and the budget of a request.

/// Whether models reason before they answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ReasoningMode {
    /// As the model does by itself, unless a request says otherwise.
    On,
    /// Not at all; a request that asks for it is refused.
    Off,
    /// Not at all; what a request says of it is passed over.
    ForcedOff,
}

/// Flags of reasoning.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ReasoningArgs {
    /// Whether models reason before they answer.
    #[arg(long, value_name = "on|off|forced-off", value_enum, default_value_t = ReasoningMode::On)]
    pub reasoning: ReasoningMode,
    /// Tokens that an answer may reason for whose request has no budget of its own; then the reasoning is
    /// closed [default: no limit].
    #[arg(long, value_name = "N")]
    pub reasoning_budget: Option<usize>,
    /// Most tokens that any answer may reason for, whatever is asked for [default: no limit].
    #[arg(long, value_name = "N")]
    pub max_reasoning_budget: Option<usize>,
}

impl ReasoningArgs {
    /// Whether models may reason.
    pub(crate) fn is_on(&self) -> bool {
        self.reasoning == ReasoningMode::On
    }

    /// What the flag says.
    pub(crate) fn name(&self) -> &'static str {
        match self.reasoning {
            ReasoningMode::On => "on",
            ReasoningMode::Off => "off",
            ReasoningMode::ForcedOff => "forced-off",
        }
    }

    /// Whether what requests say of it is passed over.
    pub(crate) fn is_forced_off(&self) -> bool {
        self.reasoning == ReasoningMode::ForcedOff
    }

    /// The budget of reasoning in an answer of at most `max_tokens`: what was `asked` for, or the `share`
    /// that an effort means, or the server's default; at most nine tenths, so that an answer follows. `None`
    /// is no limit.
    pub(crate) fn budget(
        &self,
        asked: Option<usize>,
        share: Option<f64>,
        max_tokens: usize,
    ) -> Option<usize> {
        let of_share = || share.map(|share| (max_tokens as f64 * share) as usize);
        let budget = asked.or_else(of_share).or(self.reasoning_budget);
        let budget = budget.into_iter().chain(self.max_reasoning_budget).min()?;
        Some(budget.min(max_tokens - max_tokens.div_ceil(10)))
    }
}

/// The share of an answer that an effort gives to reasoning where the chat template has no variable for it.
pub(crate) fn share_of(effort: &str) -> Option<f64> {
    Some(match effort {
        "minimal" => 0.1,
        "low" => 0.2,
        "medium" => 0.5,
        "high" => 0.8,
        "xhigh" | "max" => 0.9,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_the_least_of_all_and_leaves_a_tenth() {
        let args = |own, most| ReasoningArgs {
            reasoning: ReasoningMode::On,
            reasoning_budget: own,
            max_reasoning_budget: most,
        };
        let free = args(None, None);
        assert_eq!(free.budget(None, None, 100), None);
        assert_eq!(free.budget(Some(30), Some(0.5), 100), Some(30));
        assert_eq!(free.budget(None, Some(0.5), 100), Some(50));
        assert_eq!(free.budget(Some(500), None, 100), Some(90));
        assert_eq!(free.budget(Some(500), None, 9), Some(8));
        assert_eq!(free.budget(Some(500), None, 0), Some(0));
        assert_eq!(args(Some(20), None).budget(None, None, 100), Some(20));
        assert_eq!(args(Some(20), None).budget(Some(30), None, 100), Some(30));
        assert_eq!(args(None, Some(10)).budget(None, None, 100), Some(10));
        assert_eq!(args(Some(20), Some(10)).budget(Some(30), None, 100), Some(10));
    }
}
