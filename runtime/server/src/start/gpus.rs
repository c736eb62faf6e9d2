//! Which GPUs a server runs on.

use crate::failure::Failure;
use monomorph_model::{LoadError, ModelSpec};
use std::fmt;
use std::str::FromStr;

/// The driver's number of the GPU that a UUID names: [`monomorph_model::Model::ordinal_of`].
pub type OrdinalOf = fn(&str) -> Result<usize, LoadError>;

/// Flags of GPUs.
#[derive(Clone, Debug, clap::Args)]
pub struct GpuArgs {
    /// The GPUs to run on, by the driver's numbers, from 0, or by the UUIDs that `nvidia-smi -L` prints: as
    /// many as the ranks that `info` prints [default: the first ones].
    #[arg(long, visible_alias = "gpu-ordinal", value_name = "A,B,…", value_delimiter = ',')]
    pub gpu_ordinals: Vec<GpuName>,
}

/// A GPU as people name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuName {
    /// The driver's number.
    Ordinal(usize),
    /// `GPU-` and 36 characters in lower case.
    Uuid(String),
}

impl FromStr for GpuName {
    type Err = String;

    fn from_str(text: &str) -> Result<GpuName, String> {
        if let Ok(ordinal) = text.parse() {
            return Ok(GpuName::Ordinal(ordinal));
        }
        let lengths = [8, 4, 4, 4, 12];
        let is_uuid = text.strip_prefix("GPU-").is_some_and(|uuid| {
            let parts: Vec<&str> = uuid.split('-').collect();
            let hex = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
            parts.iter().map(|part| part.len()).eq(lengths) && parts.iter().all(hex)
        });
        if is_uuid {
            return Ok(GpuName::Uuid(format!("GPU-{}", text["GPU-".len()..].to_lowercase())));
        }
        Err("it must be a number from 0, or a UUID as `nvidia-smi -L` prints it: GPU- and five groups of hex digits"
            .to_owned())
    }
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuName::Ordinal(ordinal) => write!(f, "{ordinal}"),
            GpuName::Uuid(uuid) => f.write_str(uuid),
        }
    }
}

impl GpuArgs {
    /// The GPU of each rank; none of a server for a CPU. `of` looks UUIDs up.
    ///
    /// # Errors
    /// When others are named than one for each rank, or one that is not there.
    pub(crate) fn ordinals(
        &self,
        spec: &ModelSpec,
        ranks: usize,
        of: OrdinalOf,
    ) -> Result<Vec<usize>, Failure> {
        let given = &self.gpu_ordinals;
        let flag = || {
            let names: Vec<String> = given.iter().map(GpuName::to_string).collect();
            format!("--gpu-ordinals {}", names.join(","))
        };
        if spec.hardware.cuda.is_none() {
            return match given[..] {
                [] => Ok(Vec::new()),
                _ => Err(format!("{}: this server runs on a CPU", flag()).into()),
            };
        }
        if given.is_empty() {
            return Ok((0..ranks).collect());
        }
        if given.len() != ranks {
            let gpus = |count: usize| if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") };
            let (named, runs) = (gpus(given.len()), gpus(ranks));
            return Err(format!("{}: {named} named, and this build runs on {runs}", flag()).into());
        }
        let ordinal = |name: &GpuName| match name {
            GpuName::Ordinal(ordinal) => Ok(*ordinal),
            GpuName::Uuid(uuid) => of(uuid).map_err(|error| {
                let failure = Failure::from(error);
                Failure { message: format!("{}: {}", flag(), failure.message), ..failure }
            }),
        };
        let ordinals = given.iter().map(ordinal).collect::<Result<Vec<_>, _>>()?;
        if let Some(at) = (1..ranks).find(|at| ordinals[..*at].contains(&ordinals[*at])) {
            let twice = &given[at];
            return Err(format!("{}: GPU {twice} is named twice, and holds one rank", flag()).into());
        }
        Ok(ordinals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::EXIT_WRONG_HARDWARE;
    use monomorph_engine::scripted::{Shape, Small};
    use monomorph_model::{CudaSpec, HardwareSpec};

    const THIRD: &str = "GPU-0aF00000-1111-2222-3333-444444444444";

    /// A machine whose GPU 3 is that one.
    fn of(uuid: &str) -> Result<usize, LoadError> {
        match uuid == THIRD.replace("aF", "af") {
            true => Ok(3),
            false => Err(LoadError::Hardware(format!("there is no {uuid}"))),
        }
    }

    #[test]
    fn gpus_are_named_one_for_each_rank_or_are_the_first_ones() {
        let cuda = CudaSpec { architecture: "sm_90a", capability: (9, 0), multiprocessors: 132, tuning: "" };
        let hardware = HardwareSpec { cuda: Some(cuda), ..Small::SPEC.hardware };
        let gpu = ModelSpec { hardware, ..*Small::SPEC };
        let of = |spec: &ModelSpec, names: &[&str], ranks| {
            let names = names.iter().map(|name| name.parse().expect("a GPU's name"));
            GpuArgs { gpu_ordinals: names.collect() }.ordinals(spec, ranks, of)
        };
        assert_eq!(of(&gpu, &[], 1), Ok(vec![0]));
        assert_eq!(of(&gpu, &[], 4), Ok(vec![0, 1, 2, 3]));
        assert_eq!(of(&gpu, &["3"], 1), Ok(vec![3]));
        assert_eq!(of(&gpu, &["5", "2"], 2), Ok(vec![5, 2]));
        assert_eq!(of(&gpu, &["0", THIRD], 2), Ok(vec![0, 3]));
        assert_eq!(of(Small::SPEC, &[], 1), Ok(Vec::new()));
        let third = THIRD.replace("aF", "af");
        let twice = format!("--gpu-ordinals 3,{third}: GPU {third} is named twice, and holds one rank");
        for (found, wanted) in [
            (of(&gpu, &["0", "1"], 1), "--gpu-ordinals 0,1: 2 GPUs named, and this build runs on 1 GPU"),
            (of(&gpu, &["3"], 2), "--gpu-ordinals 3: 1 GPU named, and this build runs on 2 GPUs"),
            (of(&gpu, &["1", "0", "1"], 3), "--gpu-ordinals 1,0,1: GPU 1 is named twice, and holds one rank"),
            (of(&gpu, &["3", THIRD], 2), twice.as_str()),
            (of(Small::SPEC, &["0"], 1), "--gpu-ordinals 0: this server runs on a CPU"),
        ] {
            assert_eq!(found.map_err(|failure| failure.message), Err(wanted.to_owned()));
        }
        let gone = of(&gpu, &["GPU-00000000-0000-0000-0000-000000000000"], 1).expect_err("it is not there");
        assert_eq!(gone.code, EXIT_WRONG_HARDWARE, "{}", gone.message);
        let wanted = "--gpu-ordinals GPU-00000000-0000-0000-0000-000000000000: ";
        assert!(gone.message.starts_with(wanted), "{}", gone.message);
    }

    #[test]
    fn what_names_no_gpu_is_refused() {
        for text in ["", "-1", "first", "GPU-1", "MIG-0", &THIRD[4..], &*THIRD.replace('F', "g")] {
            let message = text.parse::<GpuName>().expect_err(text);
            assert!(message.contains("nvidia-smi -L"), "{text}: {message}");
        }
    }
}
