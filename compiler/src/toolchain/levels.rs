//! How well the crates of a server are optimised.

/// Levels of optimisation, 0 to 3, of the crates of a server. Kernels of CPUs are always at 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Everything else that the generated crate depends on.
    pub dependencies: Dependencies,
    /// The generated crate. Generic kernels of a CPU are compiled into it. That of a CUDA target has none,
    /// only copies of all that is generic over the model, and takes longer to compile than all else behind
    /// a server's dependencies; at 0 rustc takes what these have already.
    pub generated: u8,
}

/// How well what a server depends on is optimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependencies {
    /// All at one level.
    All(u8),
    /// Each as the project's tests have it, whose compiled dependencies from elsewhere these are.
    OfTests,
}

/// The level of everything that ships.
const SHIPPED: u8 = 3;

impl Levels {
    /// What ships.
    pub const SHIPPED: Levels = Levels { dependencies: Dependencies::All(SHIPPED), generated: SHIPPED };

    /// Cargo options for a server whose generated crate has this name.
    pub(super) fn options(self, generated: &str) -> Vec<String> {
        if self == Self::SHIPPED {
            return Vec::new();
        }
        let own =
            [("monomorph-device", SHIPPED), ("monomorph-formats", SHIPPED), (generated, self.generated)];
        let level = own.map(|(package, level)| format!("package.{package}.opt-level={level}"));
        let (profile, more) = match self.dependencies {
            // The profile's own level: one for the package `"*"` would hold for build scripts and macros as
            // well, which are quickest not optimised.
            Dependencies::All(level) => ("release", vec![format!("opt-level={level}")]),
            // Kernels as they ship: not checked at every addition, which would take longer than they do.
            Dependencies::OfTests => {
                let checks = ["debug-assertions", "overflow-checks"];
                let unchecked = own
                    .iter()
                    .flat_map(|(package, _)| checks.map(|it| format!("package.{package}.{it}=false")));
                ("dev", unchecked.chain([format!("package.{generated}.strip=true")]).collect())
            }
        };
        more.into_iter().chain(level).map(|it| format!("--config=profile.{profile}.{it}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_as_they_ship_and_the_generated_crate_is_at_its_own_level() {
        let options = |dependencies| Levels { dependencies, generated: 0 }.options("own");
        let level = |profile: &str, of: &str| format!("--config=profile.{profile}.{of}");
        for (dependencies, profile) in [(Dependencies::All(1), "release"), (Dependencies::OfTests, "dev")] {
            let options = options(dependencies);
            for package in
                ["monomorph-device.opt-level=3", "monomorph-formats.opt-level=3", "own.opt-level=0"]
            {
                assert!(options.contains(&level(profile, &format!("package.{package}"))), "{options:?}");
            }
        }
        assert!(options(Dependencies::All(1)).contains(&level("release", "opt-level=1")));
        let unchecked = level("dev", "package.monomorph-device.overflow-checks=false");
        assert!(options(Dependencies::OfTests).contains(&unchecked));
        assert!(Levels::SHIPPED.options("own").is_empty());
    }
}
