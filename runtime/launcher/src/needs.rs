//! What a server asks of a machine, and whether a machine has it.

use crate::machine::{Gpu, Machine, branch};
use crate::size;
use serde::{Deserialize, Serialize};

/// What a server asks of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Needs {
    /// Architecture of the host, as Rust calls it.
    pub architecture: String,
    /// Features of its processor, as Rust calls them.
    pub features: Vec<String>,
    /// The card, if the model is computed on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuNeeds>,
}

/// What it asks of a card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuNeeds {
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// The first branch of drivers that does.
    pub least_driver: u32,
    /// How many cards.
    pub count: usize,
    /// Bytes of each that the plan is made for.
    pub memory: u64,
}

impl Needs {
    /// Whether this machine has it all.
    ///
    /// # Errors
    /// Says what it lacks.
    pub fn met(&self, machine: &Machine) -> Result<(), String> {
        if self.architecture != machine.architecture {
            return Err(format!(
                "the processor is {}, and {} is needed",
                machine.architecture, self.architecture
            ));
        }
        let lacks = |it: &&String| !machine.features.contains(*it);
        let missing: Vec<&str> = self.features.iter().filter(lacks).map(String::as_str).collect();
        if !missing.is_empty() {
            return Err(format!("this processor lacks {}", missing.join(", ")));
        }
        self.gpu.as_ref().map_or(Ok(()), |gpu| gpu.met(machine))
    }
}

impl GpuNeeds {
    fn met(&self, machine: &Machine) -> Result<(), String> {
        let GpuNeeds { capability, least_driver, count, memory } = self;
        let of_it: Vec<&Gpu> = machine.gpus.iter().filter(|it| it.capability == *capability).collect();
        match (&machine.driver, machine.driver.as_deref().and_then(branch)) {
            (None, _) => Err(format!(
                "there is no NVIDIA driver; with a card, install driver {least_driver} or newer, whose nvidia-smi must be in PATH"
            )),
            (Some(driver), branch) if branch < Some(*least_driver) => {
                Err(format!("the driver is {driver}, and {least_driver} or newer is needed"))
            }
            _ if of_it.is_empty() => {
                Err(format!("there is no GPU of compute capability {}.{}", capability.0, capability.1))
            }
            // A card says a little less than its specs, and a server plans for what the card has.
            _ if of_it.iter().all(|it| it.memory < memory / 10 * 9) => {
                let most = of_it.iter().map(|it| it.memory).max().unwrap_or(0);
                Err(format!("the GPU has {}, and {} is planned for", size(most), size(*memory)))
            }
            _ if of_it.len() < *count => {
                Err(format!("there are {} such GPUs, and {count} are needed", of_it.len()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(driver: Option<&str>, gpus: Vec<Gpu>) -> Machine {
        Machine {
            architecture: "x86_64".to_owned(),
            features: ["avx2", "fma"].map(String::from).into(),
            threads: 2,
            memory: Some((24 << 30, 20 << 30)),
            driver: driver.map(str::to_owned),
            gpus,
        }
    }

    fn with(driver: &str, capability: (u32, u32), memory: u64) -> Machine {
        machine(Some(driver), vec![Gpu { name: "a card".to_owned(), capability, memory }])
    }

    fn needs(features: &[&str]) -> Needs {
        let features = features.iter().map(|it| (*it).to_owned()).collect();
        Needs { architecture: "x86_64".to_owned(), features, gpu: None }
    }

    #[test]
    fn a_gpu_is_wanted_with_its_driver_capability_and_memory() {
        let gpu = GpuNeeds { capability: (9, 0), least_driver: 580, count: 1, memory: 150_754_820_096 };
        let one = Needs { gpu: Some(gpu.clone()), ..needs(&[]) };
        let refused = |machine: &Machine| one.met(machine).expect_err("it does not run");
        assert!(refused(&machine(None, Vec::new())).starts_with("there is no NVIDIA driver; "));
        assert!(refused(&with("575.57.08", (9, 0), 141 << 30)).contains("580 or newer"));
        assert!(refused(&with("580.1", (12, 1), 141 << 30)).contains("compute capability 9.0"));
        assert!(refused(&with("580.1", (9, 0), 80 << 30)).contains("80.0 GiB"));
        let machine = with("580.95.05", (9, 0), 139 << 30);
        assert_eq!(one.met(&machine), Ok(()));
        let two = Needs { gpu: Some(GpuNeeds { count: 2, ..gpu }), ..needs(&[]) };
        assert!(two.met(&machine).is_err_and(|why| why.contains("2 are needed")));
        let arm = Needs { architecture: "aarch64".to_owned(), ..one };
        assert!(arm.met(&machine).is_err_and(|why| why.contains("aarch64")));
    }

    #[test]
    fn a_processor_is_wanted_with_all_features() {
        let machine = machine(None, Vec::new());
        assert_eq!(needs(&["avx2", "fma"]).met(&machine), Ok(()));
        let why = needs(&["avx2", "bmi2"]).met(&machine).expect_err("bmi2 is not there");
        assert_eq!(why, "this processor lacks bmi2");
    }
}
